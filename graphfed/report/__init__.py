"""Reports: one self-contained HTML file for a run, a comparison, or several runs.

read.py      folders -> plain data
charts.py    plain data -> charts as SVG, in colours that follow the page
device.py    one device of a run with one for each vertex: what it sent to whom
page.py      plain data and charts -> HTML, the model card, and the files
"""
