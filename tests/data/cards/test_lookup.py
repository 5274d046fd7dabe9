import hashlib
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from processes import LIMIT

from lightning_fl.core.errors import ConfigurationError, DataError
from lightning_fl.data.cards import lookup
from lightning_fl.data.cards.card import CardFile
from lightning_fl.data.cards.lookup import cache_folder, download, find_file, load_card, real_or_standin

CONTENT = bytes(range(256)) * 400  # 102,400 bytes
SUM = hashlib.sha256(CONTENT).hexdigest()
Answer = Callable[[BaseHTTPRequestHandler, threading.Event], None]


class Server:
    """A local server that answers every request by a function and counts the requests."""

    def __init__(self, answer: Answer) -> None:
        self.requests, self.stop = 0, threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.requests += 1
                answer(self, outer.stop)

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.address = f"http://127.0.0.1:{self.http.server_port}/data.bin"
        threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()


@pytest.fixture
def serve() -> Iterator[Callable[[Answer], Server]]:
    servers: list[Server] = []

    def start(answer: Answer) -> Server:
        servers.append(Server(answer))
        return servers[-1]

    yield start
    for server in servers:
        server.stop.set()
        server.http.shutdown()
        server.http.server_close()


def head(handler: BaseHTTPRequestHandler, status: int, length: int, **headers: str) -> None:
    handler.send_response(status)
    handler.send_header("Content-Length", str(length))
    for name, value in headers.items():
        handler.send_header(name, value)
    handler.end_headers()


def sends(content: bytes, limit: int | None = None) -> Answer:
    """Answer with the content, or the rest that is asked for; ``limit`` breaks off after that many bytes."""

    def answer(handler: BaseHTTPRequestHandler, _: threading.Event) -> None:
        start = int(handler.headers["Range"][6:-1])
        head(handler, 416 if start >= len(content) else 206, len(content[start:]))
        handler.wfile.write(content[start:][:limit])

    return answer


def sends_all(handler: BaseHTTPRequestHandler, _: threading.Event) -> None:
    """A server without ranges."""
    head(handler, 200, len(CONTENT))
    handler.wfile.write(CONTENT)


whole = sends(CONTENT)


def silent_midway(handler: BaseHTTPRequestHandler, stop: threading.Event) -> None:
    sends(CONTENT, 20)(handler, stop)
    stop.wait(LIMIT)


@pytest.mark.parametrize("answer", [whole, sends_all])
@pytest.mark.parametrize("kept", [b"", CONTENT[:1000], CONTENT])
def test_download_puts_the_whole_file_in_place(serve, tmp_path, answer, kept):
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "data.bin.part").write_bytes(kept)
    download(serve(answer).address, tmp_path / "new" / "data.bin", ("f" * 64, SUM))
    assert {path.name for path in (tmp_path / "new").iterdir()} == {"data.bin", "data.bin.lock"}
    assert (tmp_path / "new" / "data.bin").read_bytes() == CONTENT


def test_the_next_call_resumes_a_download_that_broke_off(serve, tmp_path):
    server = serve(sends(CONTENT, limit=60_000))
    with pytest.raises(DataError, match=r"data\.bin"):
        download(server.address, tmp_path / "data.bin", (SUM,))
    assert (tmp_path / "data.bin.part").read_bytes() == CONTENT[:60_000]
    download(server.address, tmp_path / "data.bin", (SUM,))
    assert (tmp_path / "data.bin").read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("answer", "limits", "fault"),
    [
        (sends(CONTENT[:-1] + b"!"), {}, f"{SUM}.*{hashlib.sha256(CONTENT[:-1] + b'!').hexdigest()}"),
        (lambda handler, _: head(handler, 404, 0), {}, "answered 404 Not Found"),
        (lambda handler, _: head(handler, 302, 0, Location="file:///etc/hostname"), {}, "InvalidSchema"),
        (None, {}, r"127\.0\.0\.1:\d+/data\.bin cannot be reached"),
        pytest.param(
            lambda _, stop: stop.wait(LIMIT), {"_SILENCE_SECONDS": 0.2}, "ReadTimeout", marks=pytest.mark.slow
        ),
        pytest.param(silent_midway, {"_SILENCE_SECONDS": 0.2}, "ReadTimeout", marks=pytest.mark.slow),
        (silent_midway, {"_DEADLINE_SECONDS": 0.0}, "too slow: 20 bytes"),  # does not wait for more
    ],
)
def test_a_download_that_fails_is_named_and_overwrites_nothing(serve, tmp_path, monkeypatch, answer, limits, fault):
    for name, seconds in limits.items():
        monkeypatch.setattr(lookup, name, seconds)
    (tmp_path / "data.bin").write_bytes(b"what was there")
    server = serve(answer or whole)
    if answer is None:
        server.http.server_close()
    with pytest.raises(DataError, match=fault):
        download(server.address, tmp_path / "data.bin", (SUM,))
    assert (tmp_path / "data.bin").read_bytes() == b"what was there"
    assert fault[:9] != SUM[:9] or not (tmp_path / "data.bin.part").exists()  # nothing to resume


def test_a_folder_that_cannot_be_written_is_named(serve, tmp_path):
    (tmp_path / "occupied").write_text("a file, not a folder")
    with pytest.raises(DataError, match=r"LIGHTNING_FL_CACHE"):
        download(serve(whole).address, tmp_path / "occupied" / "data.bin", (SUM,))


# ---- where a card's file is looked for


def card_for(name: str = "esol", addresses: tuple[str, ...] = ()):
    return replace(load_card(name), files=(CardFile("data.bin", (SUM,), addresses),))


def put(folder: Path, content: bytes = CONTENT) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "data.bin").write_bytes(content)
    return folder


def test_cache_folder_follows_the_environment(monkeypatch):
    assert str(cache_folder()).endswith("cache")
    monkeypatch.delenv("LIGHTNING_FL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_folder() == Path("/somewhere/lightning-fl")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path("~/.cache/lightning-fl").expanduser()


def test_places_are_tried_in_order(serve, tmp_path, cache, monkeypatch):
    server = serve(whole)
    card = card_for(addresses=(server.address,))
    data_root, environment = tmp_path / "root", tmp_path / "env"
    data_root.mkdir()
    monkeypatch.setenv("LIGHTNING_FL_DATA", str(environment))  # which is not there

    found = find_file(card, data_root=data_root)
    in_cache = cache / "datasets" / "esol" / "data.bin"
    assert (found.origin, found.path, found.sha256, found.verified) == ("download", in_cache, SUM, True)
    assert find_file(card, data_root=data_root).origin == "cache"
    put(environment)
    assert find_file(card, data_root=data_root).origin == "LIGHTNING_FL_DATA"
    put(data_root)
    assert find_file(card, data_root=str(data_root)).origin == "data_root"
    assert server.requests == 1


def test_the_users_own_version_is_used_with_a_warning(tmp_path):
    own = hashlib.sha256(b"own").hexdigest()
    with pytest.warns(UserWarning, match=f"{own}.*{SUM}"):
        found = find_file(card_for(), data_root=put(tmp_path / "root", b"own"))
    assert (found.sha256, found.verified) == (own, False)


def test_a_file_whose_sum_the_card_does_not_know_is_used(tmp_path, recwarn):
    card = replace(card_for(), files=(CardFile("data.bin", (), ()),))
    assert not find_file(card, data_root=put(tmp_path / "root")).verified
    assert not recwarn.list


def test_a_damaged_cache_is_replaced_by_a_download(serve, cache):
    put(cache / "datasets" / "esol", b"damaged")
    assert find_file(card_for(addresses=(serve(whole).address,))).origin == "download"
    assert (cache / "datasets" / "esol" / "data.bin").read_bytes() == CONTENT


def test_a_damaged_cache_without_a_download_is_not_used(cache):
    put(cache / "datasets" / "esol", b"damaged")
    with pytest.raises(DataError, match=r"the cache, whose data\.bin is damaged"):
        find_file(card_for())


def test_the_second_address_helps_out(serve):
    refusing = serve(lambda handler, _: head(handler, 503, 0))
    assert find_file(card_for(addresses=(refusing.address, serve(whole).address))).verified


def test_what_was_tried_and_what_to_do(serve, tmp_path, cache, monkeypatch):
    server = serve(lambda handler, _: head(handler, 403, 0))
    monkeypatch.setenv("LIGHTNING_FL_DATA", str(tmp_path))
    folder = cache / "datasets" / "esol"
    message = (
        f"data.bin of data set esol was not found in {tmp_path} (LIGHTNING_FL_DATA), {folder} (the cache); "
        f"{server.address} answered 403 Forbidden. Put data.bin in {folder}, or name its folder in data_root"
    )
    with pytest.raises(DataError, match=re.escape(message)):
        find_file(card_for(addresses=(server.address,)))


def test_offline_and_later_processes_do_not_download(serve, monkeypatch):
    server = serve(whole)
    card = card_for(addresses=(server.address,))
    with pytest.raises(DataError, match=r"prepare_data\(\) does that"):
        find_file(card, allow_download=False)
    monkeypatch.setenv("LIGHTNING_FL_OFFLINE", "1")
    with pytest.raises(DataError, match="LIGHTNING_FL_OFFLINE"):
        find_file(card)
    assert server.requests == 0


def test_no_address_is_said(cache):
    with pytest.raises(
        DataError, match=r"no download address .*drugood_ic50\.yaml.* Put lbap_core_ic50_assay\.json in"
    ):
        find_file(load_card("drugood_ic50"))


# ---- real data or the stand-in


def resolve_source(card, source="auto", data_root=None):
    return real_or_standin(card, source, lambda: find_file(card, data_root=data_root))


def test_auto_falls_back_loudly_and_only_where_there_is_a_stand_in():
    with pytest.warns(UserWarning, match=r"STAND-IN DATA: computed, not measured.*data\.bin of data set esol"):
        assert resolve_source(card_for("esol")) is None
    for name, source in (("freesolv", "auto"), ("esol", "real")):
        with pytest.raises(DataError, match=f"data set {name} was not found"):
            resolve_source(card_for(name), source=source)


def test_stand_in_by_choice(tmp_path):
    with pytest.warns(UserWarning, match="STAND-IN DATA"):
        assert resolve_source(card_for("esol"), source="standin", data_root=put(tmp_path)) is None
    with pytest.raises(ConfigurationError, match="data set freesolv has no stand-in"):
        resolve_source(card_for("freesolv"), source="standin")


def test_found_data_are_used(tmp_path, recwarn):
    assert resolve_source(card_for("esol"), data_root=put(tmp_path)).verified
    assert not recwarn.list


@pytest.mark.parametrize(
    ("options", "fault"),
    [({"source": "fake"}, "source='fake'"), ({"data_root": "typo"}, "data_root='typo'")],
)
def test_sources_are_refused(options, fault):
    with pytest.raises(ConfigurationError, match=fault):
        resolve_source(card_for(), **options)
