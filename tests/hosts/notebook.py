"""Runs cells in a kernel of Jupyter: `python notebook.py CELL ...`; prints what each printed, or raised."""

import sys

import nbformat
from nbclient import NotebookClient

cells = [nbformat.v4.new_code_cell(text) for text in sys.argv[1:]]
book = nbformat.v4.new_notebook(cells=cells)
NotebookClient(book, kernel_name="python3", allow_errors=True).execute()
for cell in cells:
    print([output.get("text") or output.get("ename") for output in cell.outputs])
