"""OpenAI's routes that answer at once, which an offline service does not have: they say so, and how
to ask instead.
"""

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from api.errors import Fault
from batchgen.domain.requests import Endpoint

CODE = "offline_only"

router = APIRouter()

_BATCHED = tuple(endpoint.value for endpoint in Endpoint)
_NOT_SERVED = (
    "/v1/responses",
    "/v1/embeddings",
    "/v1/moderations",
    "/v1/images/generations",
    "/v1/images/edits",
    "/v1/images/variations",
    "/v1/audio/speech",
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
    "/v1/realtime/sessions",
    "/v1/assistants",
    "/v1/threads",
    "/v1/fine_tuning/jobs",
    "/v1/uploads",
)
ONLINE = (*_BATCHED, *(path for path in _NOT_SERVED if path not in _BATCHED))


async def refuse(request: Request) -> JSONResponse:
    """404 in OpenAI's envelope. Nothing of the body is read."""
    path = request.url.path
    if path in _BATCHED:
        mend = (
            "upload a JSONL of such requests (POST /v1/files, purpose batch) and POST its id to "
            f"/v1/batches with the endpoint {path}, or use `batchgen submit`"
        )
    else:
        mend = f"it runs batches of {', '.join(_BATCHED)}"
    fault = Fault(
        404, f"batchgen works offline and does not answer {path} at once: {mend}", code=CODE
    )
    return JSONResponse(fault.openai.model_dump(), status_code=fault.status)


for _path in ONLINE:
    router.add_api_route(_path, refuse, methods=["POST"], include_in_schema=False, name=_path)
