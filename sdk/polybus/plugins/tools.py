"""Utilities for authors of protocols, transports and integrations.

They check arguments, redact secrets, format and rate-limit log records, provide clocks and randomness that a simulation can
replace, and shield work from cancellation.
"""

from .._util.broadcast import EventHub
from .._util.cancel_scopes import receive, to_the_end
from .._util.certificates import EXPIRES_SOON, warn_of_certificate
from .._util.class_shapes import form_of_struct
from .._util.event_loop import Loop, running_loop, wrong_event_loop
from .._util.http_status import HttpStatus, Page
from .._util.lazy_names import lazy_names
from .._util.listening import cannot_listen, is_loopback, unlink_if_ours
from .._util.logs import ViolationCounter, Warnings, log_fields, too_many
from .._util.misuse import CONNECT, blocking_entered_first
from .._util.own_thread import in_own_thread
from .._util.pattern_index import SubjectIndex, tokens_overlap
from .._util.process_end import end_by_sigterm, ending_signals, exit_at_once
from .._util.pydantic_types import adapter_of
from .._util.sources import Sources, sources
from .._util.typed_body import convert, is_read_by_pydantic, misfit, unreadable
from .._validation import (
    check_callable,
    check_choice,
    check_count,
    check_given,
    check_host,
    check_hosts,
    check_origins,
    check_tls,
    check_type,
    counted,
    explains,
    in_one_line,
    seconds,
    shown,
    shown_duration,
    texts,
)
from ..body import plain_form, scalar_form, writes_aliases
from ..secrets import is_secret, is_secret_of_query, shown_target, shown_url, without_secrets
from .connections import cookies_of

__all__ = [
    "CONNECT", "EXPIRES_SOON", "EventHub", "HttpStatus", "Loop", "Page", "Sources", "SubjectIndex", "ViolationCounter",
    "Warnings", "adapter_of", "blocking_entered_first", "cannot_listen", "check_callable", "check_choice", "check_count",
    "check_given", "check_host", "check_hosts", "check_origins", "check_tls", "check_type", "convert", "cookies_of",
    "counted", "end_by_sigterm", "ending_signals", "exit_at_once", "explains", "form_of_struct", "in_one_line",
    "in_own_thread", "is_loopback", "is_read_by_pydantic", "is_secret", "is_secret_of_query", "lazy_names", "log_fields",
    "misfit", "plain_form", "receive", "running_loop", "scalar_form", "seconds", "shown", "shown_duration", "shown_target",
    "shown_url", "sources", "texts", "to_the_end", "tokens_overlap", "too_many", "unlink_if_ours", "unreadable",
    "warn_of_certificate", "without_secrets", "writes_aliases", "wrong_event_loop",
]  # fmt: skip
