"""Building blocks to host a bus without `polybus.run`, or transports without a bus.

They are for brokers, proxies, web frameworks, command lines and blocking twins.
"""

from ._core.bus.dialer import Headers
from ._core.bus.lifecycle import raised_by_lifespan
from ._core.bus.runner import serve_until_signal, tell_of_threads_left
from ._core.handlers.signature import injected_as
from ._core.runtime.access import AccessControl, Admissions, Authenticate
from ._core.runtime.context import current_call
from ._core.runtime.runtime import Runtime, runs_here
from ._core.runtime.threads import CallThreads, waiting_in_thread
from ._type_variables import State_co

__all__ = [
    "AccessControl",
    "Admissions",
    "Authenticate",
    "CallThreads",
    "Headers",
    "Runtime",
    "State_co",
    "current_call",
    "injected_as",
    "raised_by_lifespan",
    "runs_here",
    "serve_until_signal",
    "tell_of_threads_left",
    "waiting_in_thread",
]
