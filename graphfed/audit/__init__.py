"""Attacks and empirical checks on finished runs. `graphfed.audit.run.audit` runs them, `registry.py` lists
them; a check is one file.
"""
