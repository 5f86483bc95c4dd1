"""`batchgen model`: the registered models."""

import typer

from batchgen.cli import model_add, model_apply, model_check
from batchgen.cli.api_command import Api, api_command
from batchgen.cli.model_add import Name


def add_to(app: typer.Typer) -> None:
    models = typer.Typer(help="Registered models.", no_args_is_help=True)
    app.add_typer(models, name="model")
    model_add.add_to(models)
    model_apply.add_to(models)
    model_check.add_to(models)

    @api_command(models, "list")
    def list_models(api: Api) -> None:
        """List the registered models."""
        from batchgen.cli.render import age, print_json, print_table

        found = api.client.models()
        if api.as_json:
            print_json(found)
            return
        print_table(
            ["MODEL", ">REV", "ENGINE", "POOL", "DEVICE", "FINGERPRINT", "CREATED"],
            (
                (
                    m["id"],
                    m["revision"],
                    m["engine"],
                    m["pool"],
                    m["device"],
                    m["fingerprint"][:12],
                    age(m["created"]),
                )
                for m in found
            ),
        )

    @api_command(models, "show")
    def show(api: Api, name: Name) -> None:
        """Show a model and its engine settings; those that are not set are left out."""
        from batchgen.cli.model_fields import fields_of, print_warnings
        from batchgen.cli.render import print_fields, print_json

        model = api.client.model(name)
        if api.as_json:
            print_json(model)
        else:
            print_fields(fields_of(model))
        print_warnings(model)

    @api_command(models, "remove")
    def remove(api: Api, name: Name) -> None:
        """Retire a model: no new job can name it; jobs that did go on."""
        from batchgen.cli.render import print_json

        gone = api.client.remove_model(name)
        if api.as_json:
            print_json(gone)
        else:
            print(f"{name} removed")
