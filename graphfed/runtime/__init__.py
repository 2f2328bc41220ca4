"""Runtimes: where the server and the clients compute.

local.py           all in this process
processes.py       one process per worker, on this machine
nvflare/           one process per participant, on several machines
"""
