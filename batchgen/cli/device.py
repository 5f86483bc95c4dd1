"""`batchgen device`: the devices that workers serve."""

import typer

from batchgen.cli.api_command import Api, api_command


def add_to(app: typer.Typer) -> None:
    devices = typer.Typer(help="The devices that workers serve.", no_args_is_help=True)
    app.add_typer(devices, name="device")

    @api_command(devices, "list")
    def list_devices(api: Api) -> None:
        """List the devices, with what they are doing."""
        from batchgen.cli.render import ago, print_json, print_table

        found = api.client.devices()
        if api.as_json:
            print_json(found)
            return
        print_table(
            ["DEVICE", "HOST", "POOL", "STATE", "SEEN", "DETAIL"],
            (
                (
                    d["device"],
                    d["host"],
                    d["pool"],
                    d["state"],
                    ago(d["heartbeat_age_s"]),
                    d["detail"],
                )
                for d in found
            ),
        )
