"""`pybeam serve`: models over HTTP (extra `serve`).

`build_app` makes the ASGI application of loaded models, `serve` runs it until the process is told to stop.
"""
