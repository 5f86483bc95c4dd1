"""How the demo models are made: `python -m batchgen.demo.recipe --help`.

Needs the environment of requirements/export.txt (torch, optimum-intel); the product never imports
this package.
"""
