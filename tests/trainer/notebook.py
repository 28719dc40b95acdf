"""Print the code of a notebook as a program: `python tests/trainer/notebook.py NOTEBOOK [NAME=VALUE]... >PROGRAM`.

Lines for a shell are left out. NAME=VALUE sets a parameter after the cell of parameters, as papermill does.
"""

import json
import sys
from pathlib import Path

notebook, *parameters = sys.argv[1:]
for cell in json.loads(Path(notebook).read_text())["cells"]:
    if cell["cell_type"] == "code":
        lines = [line for line in "".join(cell["source"]).splitlines() if not line.lstrip().startswith("!")]
        print("\n".join(lines))
        if lines[:1] == ["#parameters"]:
            print("\n".join(parameters))
