"""Reports: one self-contained HTML file for a run, a comparison, or several runs.

read.py            reads the folders of runs
results.py         the scores of runs, and the table of a comparison
transfers.py       what left the clients, read from the ledgers
one_client.py      what a single client sent and disclosed
sent.py            what left one site of a deployment
forecasts.py       what a report adds for runs of forecasting; forecast_table.py reads their predictions
charts.py          charts of runs; forecast_charts.py: of forecasts; overviews.py: of the data
figures.py         how the values of metrics are written
templates.py       turns all of this into text: page.html.jinja, card.md.jinja, sentences.txt.jinja
page.py            writes the files
"""
