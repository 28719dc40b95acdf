"""`python -m elastic.cli`: the command `elastic`, for where its script is not on the PATH."""

from elastic.cli import main

main(prog_name="elastic")
