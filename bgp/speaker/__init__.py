"""ExaBGP inside our process: sessions, timers, MD5, OPEN and configuration are its own.

Layer: edge. `seams` is the only module that knows ExaBGP's internals; `decode` uses its attribute
codec; `session` and `engine` join sessions and RIB. Everything else of ours sees `engine.Speaker`.
"""
