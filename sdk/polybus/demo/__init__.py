"""`polybus demo`: a small plant, played by real processes over every protocol and transport that there is.

A *back end* (`backend`) serves, *sensors* (`sensors`) are clients that publish and can be asked, and the operator's *console*
(`console`) is the client that goes through the steps and checks what comes of them. Each protocol has rows
(`rows`): one row is all steps over one wire. `play` runs the rows; showing them is the business of `polybus.cli`.
"""
