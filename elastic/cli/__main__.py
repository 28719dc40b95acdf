"""Run the command `elastic` as `python -m elastic.cli`, for shells whose PATH does not contain its script."""

from elastic.cli import main

main(prog_name="elastic")
