"""`batchgen key`: who may use the API."""

from typing import Annotated

import typer

from batchgen.cli.api_command import Api, api_command
from batchgen.domain.errors import InvalidRequest
from batchgen.domain.jobs import Scope


def add_to(app: typer.Typer) -> None:
    keys = typer.Typer(help="API keys.", no_args_is_help=True)
    app.add_typer(keys, name="key")

    @api_command(keys, "create")
    def create(
        api: Api,
        name: Annotated[str, typer.Argument(help="What the key is for.")],
        scope: Annotated[
            Scope, typer.Option(help="An admin may also manage models and keys.")
        ] = Scope.USER,
        project: Annotated[
            str | None,
            typer.Option(
                help="What the key sees: its files and jobs are of this project. Default: default."
            ),
        ] = None,
        expires_in: Annotated[
            str | None,
            typer.Option(
                "--expires-in", metavar="TIME", help="<n>m, <n>h or <n>d. Default: never."
            ),
        ] = None,
    ) -> None:
        """Create a key. Its secret is shown this once."""
        from batchgen.cli.render import note, print_json

        body: dict[str, object] = {"name": name, "scope": scope.value}
        if project is not None:
            body["project"] = project
        if expires_in is not None:
            body["expires_in_s"] = _seconds(expires_in)
        made = api.client.create_key(body)
        if api.as_json:
            print_json(made)
            return
        note("keep it: only its hash is stored, and it is not shown again")
        print(made["secret"])

    @api_command(keys, "list")
    def list_keys(api: Api) -> None:
        """List the keys, without their secrets."""
        from batchgen.cli.render import age, clock_time, print_json, print_table

        found = api.client.keys()
        if api.as_json:
            print_json(found)
            return
        print_table(
            ["KEY", "NAME", "PROJECT", "SCOPE", "CREATED", "LAST USED", "EXPIRES", "REVOKED"],
            (
                (
                    k["id"],
                    k["name"],
                    k["project"],
                    k["scope"],
                    age(k["created_at"]),
                    age(k["last_used_at"]),
                    clock_time(k["expires_at"]),
                    age(k["revoked_at"]),
                )
                for k in found
            ),
        )

    @api_command(keys, "revoke")
    def revoke(
        api: Api, key_id: Annotated[str, typer.Argument(metavar="KEY", help="The key's id.")]
    ) -> None:
        """Revoke a key: from now on it is refused."""
        from batchgen.cli.render import print_json

        gone = api.client.revoke_key(key_id)
        if api.as_json:
            print_json(gone)
        else:
            print(f"{key_id} revoked")


def _seconds(written: str) -> int:
    from batchgen.domain.window import window_seconds

    try:
        return window_seconds(written, longest_s=100 * 366 * 86_400)
    except InvalidRequest:
        raise InvalidRequest(
            f"--expires-in '{written}' is not of the form <n>m, <n>h or <n>d", param="--expires-in"
        ) from None
