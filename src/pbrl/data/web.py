"""HTTP that comes to an end: a least rate, redirects to web addresses only, clear refusals."""

from __future__ import annotations

import io
import socket
import time
import urllib.parse
import urllib.request
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any

LEAST_RATE = 1024
"""Bytes a second; a connection that brings less over its time limit counts as broken."""

BROKEN = (HTTPException, TimeoutError, ConnectionError)
"""What a connection may raise while an answer is read."""


class NotAnAddress(Exception):
    """The address, or one it redirects to, cannot be asked at all."""


class TooSlow(TimeoutError):
    """The connection lives, but would take for ever."""


def ask(url: str, headers: dict[str, str], timeout: float) -> Any:
    """The answer to a GET request, as ``urllib.request.urlopen`` gives it.

    Args:
        url: an http or https address.
        headers: of the request.
        timeout: seconds without a byte, and the span over which ``LEAST_RATE`` is demanded.
    """
    _check(url)
    opener = urllib.request.build_opener(_Plain, _Secure, _Redirect)
    try:
        return opener.open(urllib.request.Request(url, headers=headers), timeout=timeout)
    except ValueError as error:  # hosts and ports that no resolver takes
        raise NotAnAddress(f"'{url}' is not an address: {error}") from error


def _check(url: str) -> None:
    try:
        parts = urllib.parse.urlsplit(url)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        good = False
    if not good or not url.isprintable() or " " in url:
        raise NotAnAddress(f"The mirror must be an http or https address with a host; got '{url}'")


class _Redirect(urllib.request.HTTPRedirectHandler):
    """Urllib would also follow a redirect to ftp."""

    def http_error_302(self, req: Any, fp: Any, code: int, msg: str, headers: Any) -> Any:
        place = str(headers.get("location", ""))
        try:
            _check(urllib.parse.urljoin(req.full_url, place))
            return super().http_error_302(req, fp, code, msg, headers)
        except (NotAnAddress, ValueError) as error:
            fp.close()
            raise NotAnAddress(f"{req.full_url} redirects to '{place}', no web address") from error

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


class _Paced(io.RawIOBase):
    """A socket's bytes, as long as they come at the least rate."""

    def __init__(self, raw: io.RawIOBase, seconds: float) -> None:
        self._raw = raw
        self._seconds = seconds
        self._began, self._bytes = time.monotonic(), 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        got = self._raw.readinto(buffer)
        self._bytes += got or 0
        passed = time.monotonic() - self._began
        if got and passed >= self._seconds:
            if self._bytes < LEAST_RATE * passed:
                raise TooSlow(f"less than {LEAST_RATE} bytes a second for {passed:.0f} s")
            self._began, self._bytes = time.monotonic(), 0
        return got

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Answer(HTTPResponse):
    def __init__(self, sock: socket.socket, *args: Any, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        seconds = sock.gettimeout()
        if seconds is not None:
            self.fp = io.BufferedReader(_Paced(self.fp.detach(), seconds))


class _PlainConnection(HTTPConnection):
    response_class = _Answer


class _SecureConnection(HTTPSConnection):
    response_class = _Answer


class _Plain(urllib.request.HTTPHandler):
    def http_open(self, req: urllib.request.Request) -> HTTPResponse:
        return self.do_open(_PlainConnection, req)


class _Secure(urllib.request.HTTPSHandler):
    def https_open(self, req: urllib.request.Request) -> HTTPResponse:
        return self.do_open(_SecureConnection, req)
