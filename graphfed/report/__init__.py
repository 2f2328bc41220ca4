"""Reports: one self-contained HTML file for a run, a comparison, or several runs.

read.py            folders -> runs
results.py         runs -> scores, and the table of a comparison
transfers.py       ledgers -> what left each client; device.py: one device; sent.py: a client of a deployment
forecasts.py       runs of forecasting -> what else is said of them
charts.py          runs -> charts; forecast_charts.py, overviews.py: of forecasts, and of the data
figures.py         how the values of metrics are written
templates.py       all of this -> text: page.html.jinja, card.md.jinja, sentences.txt.jinja
page.py            the files
"""
