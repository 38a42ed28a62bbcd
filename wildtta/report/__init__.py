"""From a run folder to tables and a page.

    write_report("runs/demo")                 # runs/demo/report/index.html, results.md, results.tex, results.csv
    for table in tables(load_run("runs/demo")):
        rich.print(table)

A run may be unfinished: what is missing shows as missing. A damaged cell is left out and named.
"""

from wildtta.report.headline import headline
from wildtta.report.run import Cell, Run, RunError, load_run
from wildtta.report.table import Table
from wildtta.report.tables import tables
from wildtta.report.write import write_report

__all__ = ["Cell", "Run", "RunError", "Table", "headline", "load_run", "tables", "write_report"]
