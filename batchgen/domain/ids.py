"""Identifiers: what they are called and how new ones are made."""

import secrets
import uuid
from typing import NewType

JobId = NewType("JobId", str)
FileId = NewType("FileId", str)
KeyId = NewType("KeyId", str)
ModelId = NewType("ModelId", str)
DeviceId = NewType("DeviceId", str)
SessionId = NewType("SessionId", str)
CheckId = NewType("CheckId", str)
ShardId = NewType("ShardId", int)
SegmentId = NewType("SegmentId", int)
LeaseToken = NewType("LeaseToken", uuid.UUID)
Project = NewType("Project", str)


def _random() -> str:
    return secrets.token_hex(12)


def new_job_id() -> JobId:
    """A generation job is an OpenAI batch, so it wears the prefix its clients know."""
    return JobId(f"batch_{_random()}")


def new_file_id() -> FileId:
    return FileId(f"file-{_random()}")


def new_key_id() -> KeyId:
    return KeyId(secrets.token_hex(6))


def new_model_id() -> ModelId:
    return ModelId(f"model_{_random()}")


def new_session_id() -> SessionId:
    return SessionId(f"session_{_random()}")


def new_check_id() -> CheckId:
    return CheckId(f"check_{_random()}")


def new_lease_token() -> LeaseToken:
    return LeaseToken(uuid.uuid4())
