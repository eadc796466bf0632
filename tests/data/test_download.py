"""Downloads against a loopback server that misbehaves in every way we know of."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from row_samples import as_arrays, random_rows, write_hdf5

from pbrl.data import load_dataset
from pbrl.data.catalogue import CatalogueEntry, catalogue
from pbrl.data.download import cache_directory, download
from pbrl.errors import PbrlError


@dataclass
class Server:
    """One file, and the ways in which it is to be served, one a request (the last repeats)."""

    content: bytes
    manners: list[str]
    url: str = ""
    ranges: list[str | None] = field(default_factory=list)
    sent: int = 0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    path = write_hdf5(tmp_path / "original.hdf5", as_arrays(random_rows(0, 3000, 11, 3)))
    state = Server(path.read_bytes(), ["well"])

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            manner = state.manners.pop(0) if len(state.manners) > 1 else state.manners[0]
            wanted = self.headers.get("Range")
            state.ranges.append(wanted)
            if manner in ("404", "403", "500", "503", "416"):
                self.send_error(int(manner))
                return
            if manner == "rude":
                self.send_response_only(404, "\x1b[2J\x1b]0;owned\x07Gone")
                self.end_headers()
                return
            if manner.startswith("to "):
                self.send_response(302)
                self.send_header("Location", manner.removeprefix("to "))
                self.end_headers()
                return
            if manner.startswith("drip"):
                self.drip(manner)
                return
            if manner == "hang":
                time.sleep(1.5)
                return
            body, kind, status = state.content, "application/octet-stream", 200
            if manner in ("html", "login"):
                body = b"<!DOCTYPE html><title>Please sign in</title>" + b" " * len(body)
                kind = "text/html; charset=utf-8" if manner == "html" else kind
            if manner == "corrupt":
                middle = len(body) // 2
                body = body[:middle] + bytes([body[middle] ^ 1]) + body[middle + 1 :]
            if manner == "short" or manner.startswith("length"):
                body = body[:-100]
            if manner == "long":
                body = body + b"more"
            start = 0
            if wanted and manner not in ("no range", "growing drop"):
                start, status = int(wanted.removeprefix("bytes=").removesuffix("-")), 206
            announced = len(body) - start
            if manner == "lying range":
                # Says 206, but for a range nobody asked for.
                start = 0
            self.send_response(status)
            self.send_header("Content-Type", kind)
            if status == 206:
                self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
                announced = len(body) - start
            if manner.startswith("length "):
                self.send_header("Content-Length", manner.removeprefix("length "))
            elif manner != "no length":
                self.send_header("Content-Length", str(announced))
            self.end_headers()
            sent = body[start:]
            if manner in ("drop", "no length drop"):
                sent = sent[: max(1, len(sent) // 3)]
            if manner == "stall":
                self.wfile.write(sent[: len(sent) // 3])
                self.wfile.flush()
                time.sleep(1.5)
                return
            if manner == "growing drop":
                state.sent += 1
                sent = body[: state.sent]
            self.wfile.write(sent)

        def drip(self, manner: str) -> None:
            """One byte every now and then, in the header or after it, as long as anyone listens."""
            if manner == "drip":
                self.send_response(200)
                self.send_header("Content-Length", str(len(state.content)))
                self.end_headers()
            else:
                self.wfile.write(b"HTTP/1.0 200 OK\r\nX-Slow: ")
            try:
                for byte in state.content:
                    self.wfile.write(bytes([byte]) if manner == "drip" else b"a")
                    time.sleep(0.02)
            except OSError:
                pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    thread = threading.Thread(target=http.serve_forever, args=(0.02,))
    thread.start()
    state.url = f"http://127.0.0.1:{http.server_port}/mirror/"
    yield state
    http.shutdown()
    http.server_close()
    thread.join()


@pytest.fixture
def entry(server: Server) -> CatalogueEntry:
    digest = hashlib.sha256(server.content).hexdigest()
    known = catalogue()["hopper-medium-v2"]
    return replace(known, size=len(server.content), sha256=digest)


def fetch(entry: CatalogueEntry, server: Server, folder: Path, **options: float) -> Path:
    settings = {"attempts": 3, "timeout": 0.5, "pause": 0.01} | options
    return download(entry, directory=folder, mirror=server.url, **settings)  # type: ignore[arg-type]


def left_over(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def hidden(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("."))


def test_a_good_answer(server: Server, entry: CatalogueEntry, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    path = download(
        entry,
        directory=tmp_path / "d",
        mirror=server.url,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert path.read_bytes() == server.content
    assert left_over(tmp_path / "d") == ["hopper-medium-v2.hdf5"]
    assert seen[-1] == (entry.size, entry.size)
    assert len(load_dataset(path)) > 0
    assert hidden(tmp_path / "d") == [".hopper-medium-v2.hdf5.verified"]
    # There already: the server is not asked again.
    fetch(entry, server, tmp_path / "d")
    assert len(server.ranges) == 1


@pytest.mark.parametrize(
    ("manner", "message"),
    [
        ("html", "web page .* instead of HDF5 data"),
        ("login", "web page .* instead of HDF5 data"),
        ("corrupt", "does not match its SHA-256 checksum; it was removed"),
        ("short", "bytes where .* were expected; the copy there is truncated"),
        ("long", "bytes where .* were expected"),
        ("404", "answered 404 .*--mirror"),
        ("403", "answered 403 .*--mirror"),
    ],
)
def test_a_wrong_answer_is_refused_and_removed(
    server: Server, entry: CatalogueEntry, tmp_path: Path, manner: str, message: str
) -> None:
    server.manners = [manner]
    with pytest.raises(PbrlError, match=message):
        fetch(entry, server, tmp_path / "d")
    assert left_over(tmp_path / "d") == []
    assert len(server.ranges) == 1


@pytest.mark.parametrize("manner", ["500", "503", "hang"])
def test_a_server_in_trouble_is_tried_again_then_named(
    server: Server, entry: CatalogueEntry, tmp_path: Path, manner: str
) -> None:
    server.manners = [manner]
    began = time.monotonic()
    with pytest.raises(PbrlError, match=r"failed: .*(answered|timed out).*Try again later"):
        fetch(entry, server, tmp_path / "d", timeout=0.2)
    assert len(server.ranges) == 3
    assert time.monotonic() - began < 10
    server.manners = [manner, "well"]
    assert fetch(entry, server, tmp_path / "d", timeout=0.2).read_bytes() == server.content


@pytest.mark.parametrize("manner", ["drop", "stall"])
def test_a_broken_connection_is_resumed(
    server: Server, entry: CatalogueEntry, tmp_path: Path, manner: str
) -> None:
    server.manners = [manner, manner, "well"]
    path = fetch(entry, server, tmp_path / "d", timeout=0.2)
    assert path.read_bytes() == server.content
    third = len(server.content) // 3
    assert server.ranges[:2] == [None, f"bytes={third}-"]
    assert server.ranges[2] is not None


def test_the_next_command_goes_on_where_the_last_one_stopped(
    server: Server, entry: CatalogueEntry, tmp_path: Path
) -> None:
    server.manners = ["drop", "503"]
    with pytest.raises(PbrlError, match="bytes are kept"):
        fetch(entry, server, tmp_path / "d")
    assert left_over(tmp_path / "d") == ["hopper-medium-v2.hdf5.part"]
    server.manners, server.ranges = ["well"], []
    assert fetch(entry, server, tmp_path / "d").read_bytes() == server.content
    assert server.ranges == [f"bytes={len(server.content) // 3}-"]
    assert left_over(tmp_path / "d") == ["hopper-medium-v2.hdf5"]


@pytest.mark.parametrize("manner", ["no range", "lying range", "416"])
def test_servers_that_cannot_resume(
    server: Server, entry: CatalogueEntry, tmp_path: Path, manner: str
) -> None:
    server.manners = ["drop", manner, "well"]
    assert fetch(entry, server, tmp_path / "d").read_bytes() == server.content


def test_without_a_length_the_size_still_counts(
    server: Server, entry: CatalogueEntry, tmp_path: Path
) -> None:
    server.manners = ["no length"]
    assert fetch(entry, server, tmp_path / "d").read_bytes() == server.content


def test_a_part_of_another_file_is_noticed(
    server: Server, entry: CatalogueEntry, tmp_path: Path
) -> None:
    folder = tmp_path / "d"
    folder.mkdir()
    (folder / "hopper-medium-v2.hdf5.part").write_bytes(b"x" * 1000)
    with pytest.raises(PbrlError, match="SHA-256"):
        fetch(entry, server, folder)
    assert left_over(folder) == []
    assert fetch(entry, server, folder).read_bytes() == server.content


def test_nobody_listens(entry: CatalogueEntry, tmp_path: Path) -> None:
    with pytest.raises(PbrlError, match=r"failed: .*Nothing has arrived yet"):
        download(entry, directory=tmp_path, mirror="http://127.0.0.1:9", attempts=2, pause=0.01)
    with pytest.raises(PbrlError, match="must be an http or https address"):
        download(entry, directory=tmp_path, mirror="ftp://example.org")


def test_two_at_once_do_not_mix(server: Server, entry: CatalogueEntry, tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    server.manners = ["stall", "well"]
    results: list[Path] = []
    first = threading.Thread(
        target=lambda: results.append(fetch(entry, server, tmp_path, timeout=1.0))
    )
    first.start()
    while not server.ranges:
        time.sleep(0.01)
    with pytest.raises(PbrlError, match="Another process is downloading"):
        fetch(entry, server, tmp_path)
    first.join()
    assert results[0].read_bytes() == server.content


def test_a_place_that_cannot_be_written(
    server: Server, entry: CatalogueEntry, tmp_path: Path
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    with pytest.raises(PbrlError, match="set PBRL_DATA_DIR to a directory"):
        fetch(entry, server, blocked / "d")


def test_a_name_is_fetched_from_the_mirror_and_loaded(
    server: Server, entry: CatalogueEntry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PBRL_DATA_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PBRL_D4RL_MIRROR", server.url)
    monkeypatch.setitem(catalogue(), entry.name, entry)
    assert cache_directory() == tmp_path / "cache"
    dataset = load_dataset("hopper-medium-v2")
    assert dataset.info.name == "hopper-medium-v2"
    assert dataset.info.env_id == "pbrl/HopperD4RL-v0"
    assert dataset.info.score_source == "D4RL"
    load_dataset("hopper-medium-v2")
    assert len(server.ranges) == 1
    (tmp_path / "cache" / "hopper-medium-v2.hdf5").write_bytes(b"cut")
    with pytest.raises(PbrlError, match="Remove it, or replace it: run 'pbrl data download"):
        load_dataset("hopper-medium-v2")


@pytest.mark.parametrize("manner", ["drip", "drip header", "growing drop"])
def test_a_download_comes_to_an_end(
    server: Server, entry: CatalogueEntry, tmp_path: Path, manner: str
) -> None:
    server.manners = [manner]
    with pytest.raises(PbrlError, match=r"failed: (less than|.*ended early).*Try again later"):
        fetch(entry, server, tmp_path / "d", attempts=2, timeout=0.2, pause=0)
    assert len(server.ranges) <= 20


@pytest.mark.parametrize("place", ["ftp://127.0.0.1/x", "file:///etc/passwd", "http://[bad/x"])
def test_redirects_lead_to_the_web_only(
    server: Server, entry: CatalogueEntry, tmp_path: Path, place: str
) -> None:
    server.manners = [f"to {place}"]
    with pytest.raises(PbrlError, match=r"redirects to .*, no web address"):
        fetch(entry, server, tmp_path / "d")
    assert left_over(tmp_path / "d") == []


@pytest.mark.parametrize("length", ["-5", "a lot", "1e9"])
def test_odd_lengths_are_not_believed(
    server: Server, entry: CatalogueEntry, tmp_path: Path, length: str
) -> None:
    server.manners = [f"length {length}"]
    with pytest.raises(PbrlError, match="truncated or another file"):
        fetch(entry, server, tmp_path / "d")


@pytest.mark.parametrize(
    "mirror",
    ["http://", "http://[::1", "http://h:99999", "http://h:x", "http://a..b/", "http://a b/"],
)
def test_odd_mirrors_are_named(entry: CatalogueEntry, tmp_path: Path, mirror: str) -> None:
    with pytest.raises(PbrlError, match="address"):
        download(entry, directory=tmp_path, mirror=mirror, attempts=1)


@pytest.mark.parametrize("timeout", [0.0, -1.0, float("nan"), float("inf"), 1e20])
def test_odd_time_limits_are_named(entry: CatalogueEntry, tmp_path: Path, timeout: float) -> None:
    with pytest.raises(PbrlError, match="timeout"):
        download(entry, directory=tmp_path, mirror="http://127.0.0.1:9", timeout=timeout)


def test_what_a_server_says_cannot_command_the_terminal(
    server: Server, entry: CatalogueEntry, tmp_path: Path
) -> None:
    server.manners = ["rude"]
    with pytest.raises(PbrlError, match="answered 404") as caught:
        fetch(entry, server, tmp_path / "d")
    assert str(caught.value).isprintable()


def test_a_cached_file_is_checked_before_it_is_trusted(
    server: Server, entry: CatalogueEntry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PBRL_DATA_DIR", str(tmp_path))
    monkeypatch.setitem(catalogue(), entry.name, entry)
    wrong = bytearray(server.content)
    wrong[-1] ^= 1
    path = tmp_path / "hopper-medium-v2.hdf5"
    path.write_bytes(wrong)
    with pytest.raises(PbrlError, match=r"SHA-256.*run 'pbrl data download hopper-medium-v2'"):
        load_dataset("hopper-medium-v2")
    # Downloading puts it right.
    assert fetch(entry, server, tmp_path).read_bytes() == server.content
    assert len(server.ranges) == 1
    load_dataset("hopper-medium-v2")
    # A change of size, or of content at another time, is noticed after that as well.
    path.write_bytes(wrong)
    with pytest.raises(PbrlError, match="SHA-256"):
        load_dataset("hopper-medium-v2")


def test_the_checksum_is_taken_once(
    server: Server, entry: CatalogueEntry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = fetch(entry, server, tmp_path)
    monkeypatch.setattr("pbrl.data.download.file_digest", None)  # calling it would fail
    assert fetch(entry, server, tmp_path) == path


def test_the_catalogue_holds_all_sets_of_the_paper() -> None:
    entries = catalogue()
    gym = {
        f"{env}-{kind}-v2"
        for env in ("halfcheetah", "hopper", "walker2d")
        for kind in ("random", "medium", "medium-replay", "medium-expert", "expert")
    }
    adroit = {
        f"{env}-{kind}-{version}"
        for env in ("pen", "hammer", "door", "relocate")
        for kind in ("human", "cloned", "expert")
        for version in ("v0", "v1")
    }
    assert set(entries) == gym | adroit
    for entry in entries.values():
        assert len(entry.sha256) == 64
        assert entry.size > 1_000_000
        assert entry.name.startswith(entry.environment.family)
    assert entries["pen-human-v0"].url().endswith("/hand_dapg/pen-v0_demos_clipped.hdf5")
    assert len({entry.sha256 for entry in entries.values()}) == 39


def test_the_catalogue_agrees_with_the_published_checksums(real_data: Path) -> None:
    lines = (real_data / "d4rl-official-checksums.tsv").read_text().splitlines()
    official = {line.split("\t")[0]: line.split("\t")[1:3] for line in lines if "\t" in line}
    for entry in catalogue().values():
        assert official[entry.url()] == [str(entry.size), entry.sha256]
