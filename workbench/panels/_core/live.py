"""Base of every live panel: load BokehJS, replay to a reloaded page, publish, take input while a cell runs.

The two ends exchange the widget's custom messages. The front end sends `hello` when it has a view, and the
kernel sends nothing before. The kernel answers with BokehJS (once per page, from the installed bokeh, without
a network) and with the `snapshot`, which contains everything for a first drawing. Then it sends `changes`,
one binary message per update. It answers every message of the front end with a `pong` immediately. If that
takes more than a second, the front end shows that input waits for the end of the cell.

A kernel without subshells receives no `hello` before the cell has ended. So a displayed view that has sent
nothing after a second gets the greeting anyway, and several times more within 90 s. After that it gets
updates; rarely if it stays silent.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import importlib.metadata
import importlib.util
import json
import math
import re
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any, ClassVar

import anywidget

from ...errors import UsageError, WorkbenchError, checked_value, describe_error, shown
from . import theme
from .jupyter import answer_while_busy, cell_is_running, executed, kernel, unblock
from .persistent import Bundle, Displayed, DisplayHandle, widget_bundle

STATIC = Path(__file__).parents[1] / "static"
UNWATCHED_S = 5.0  # between two readings of the source while no view is visible
UNASKED_S = 1.5  # from display to a greeting without `hello`; the next one after twice the time
ABSENT_S = 90.0  # without a message from a browser; a hidden one sends few
KEEP_FINISHED = 8  # panels that can still be replayed to a page reloaded while their cell ran

# anywidget waits two seconds for a module and then drops every message of its kernel. A busy machine takes
# longer to link ten files, so they are linked when the first view is drawn.
LINK = r"""let linked;
function link() {
  const addresses = {};
  for (const [name, text] of Object.entries(FILES)) {
    const address = (_, what, file) => `${what}"${addresses[file]}";`;
    const linkable = text.replace(/^(import .* from )"\.\/(.+)";$/gm, address);
    const parts = [linkable, `\n//# sourceURL=workbench/${name}`];
    addresses[name] = URL.createObjectURL(new Blob(parts, { type: "text/javascript" }));
  }
  return import(Object.values(addresses).at(-1));
}
export default {
  async render(view) {
    linked ??= link();
    return (await linked).default.render(view);
  },
};
"""

Content = dict[str, Any]  # of a message
Message = tuple[Content, list[bytes]]


@functools.cache
def script(name: str) -> str:
    """The ES module of a view: the bundle that a wheel carries, else the files of `static` with a few lines
    that let the browser link them.

    A browser finds what a file imports by its address, and in a notebook files have none. So each becomes an
    object of the page, after those that it imports and with their addresses in place of their names.
    """
    bundle = STATIC / "dist" / f"{name}.js"
    if bundle.is_file():
        return bundle.read_text(encoding="utf-8")
    texts: dict[str, str] = {}

    def collect(file: str) -> None:
        if file not in texts:
            text = (STATIC / file).read_text(encoding="utf-8")
            for imported in re.findall(r'^import .* from "\./([\w.]+)";$', text, flags=re.MULTILINE):
                collect(imported)
            texts[file] = text

    collect(f"{name}.js")
    return LINK.replace("FILES", json.dumps(texts))


@functools.cache
def bokeh_js() -> tuple[str, bytes]:
    """Version and gzipped text of BokehJS as installed; to import bokeh would take a second."""
    found = importlib.util.find_spec("bokeh")
    if found is None or found.origin is None:
        raise WorkbenchError("the live view needs bokeh, which is not installed: pip install bokeh")
    path = Path(found.origin).parent / "server" / "static" / "js" / "bokeh.min.js"
    return importlib.metadata.version("bokeh"), gzip.compress(path.read_bytes(), 6)


def field(content: Content, name: str, *kinds: str) -> Any:
    """A field of a browser's message, of one of the kinds of `errors.checked_value`. Raises UsageError."""
    value = content.get(name)
    if value is None and "None" not in kinds:
        raise UsageError(f"the page sent no {name}; reload it")
    return checked_value(name, value, kinds)


class LivePanel(Displayed, anywidget.AnyWidget):
    """A widget that draws with BokehJS and gets its data from a thread. Subclasses provide the content
    (`about`, `news`, `svg`, `summary`), read new data (`refresh`) and handle actions (`on_message`).

    Args:
        live: True for a widget, False for a picture; None takes a widget if the front end supports them.
    """

    poll_s: ClassVar[float] = 0.5  # between two readings of the source while a view is visible
    keeps_error: ClassVar[tuple[str, ...]] = ()  # messages that keep an earlier problem on the screen
    _css = STATIC / "panel.css"
    _finished: ClassVar[deque[LivePanel]] = deque()
    _of_cells: ClassVar[dict[str, LivePanel]] = {}  # shown last by a cell, of each kind of panel

    def __init__(self, *, live: bool | None = None) -> None:
        self._shown = DisplayHandle(live)
        self._lock = threading.RLock()  # sent messages and known state belong together
        self._problem = ""
        self._greeted: dict[str, float] = {}  # views, and when
        self._equipped: set[str] = set()  # views that have BokehJS
        self._sent: Content = {}  # the content that views have
        self._read_s = self._heard_s = self._shown_s = time.monotonic()  # the source; a browser; a new view
        self._unasked_s = math.inf  # time of the greeting for a silent view
        self._watched, self._ended = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._request = ""  # that showed it
        self._older: list[LivePanel] = []  # of earlier runs of its cell
        self._newer: LivePanel | None = None
        super().__init__()
        self.on_msg(lambda _widget, content, _buffers: self.receive(content))
        unblock(self)
        answer_while_busy()

    # for subclasses

    def about(self) -> Content:
        """The constant facts for a view. Called with the lock held."""
        return {}

    def news(self, *, whole: bool = False) -> Message | None:
        """The content, and buffers with data that views do not have yet; with `whole` all of it. None if
        nothing is new. Called with the lock held.
        """
        raise NotImplementedError

    def snapshot(self) -> Message:
        """Everything for the first drawing of a view. Called with the lock held."""
        self._heard_s = time.monotonic()
        self.start()
        self._reread()
        content, buffers = self.news(whole=True) or ({}, [])
        return {"theme": theme.VARIABLES, **self.about(), **content}, buffers

    def changes(self) -> Message | None:
        """The changes since the last call. None if there are none, if the source was read just now, or if no
        browser has sent a message for long. Called with the lock held.
        """
        if self.absent() or not self.due():
            return None
        self.refresh()
        message = self.news()
        if message is None or (not message[1] and message[0] == self._sent):
            return None
        self._sent = message[0]
        self._picture_later()
        return message

    def quiet(self) -> bool:
        """Whether no browser has sent a message for long."""
        return time.monotonic() - self._heard_s > ABSENT_S

    def absent(self) -> bool:
        """Whether no browser has, although it could: a cell may keep this kernel from receiving messages."""
        return self.quiet() and not cell_is_running()

    def due(self) -> bool:
        """Whether to read the source again; then it counts as read. Rarely for a silent browser, because
        messages may wait for one that is closed.
        """
        now_s = time.monotonic()
        if now_s - self._read_s < (UNWATCHED_S if self.quiet() else 0.5 * self.poll_s):
            return False
        self._read_s = now_s
        return True

    def drain(self) -> None:
        """Read data that would be lost while no view is visible. Called at intervals, with the lock held."""

    def on_message(self, kind: str, content: Content) -> None:
        """Handle a message of the front end, on any thread; an exception is shown under the plot."""

    def tell(self, **more: Any) -> None:
        """Read new data and send them to all views now."""
        with self._lock:
            self.refresh()
            self._sent, buffers = self.news() or ({}, [])
            self._picture_later()
            self._say({**self._sent, **more}, buffers)

    # showing

    def show(self) -> None:
        super().show()
        cell, self._request = executed()
        if cell:
            cell = f"{type(self).__name__} {cell}"  # anywidget makes a class for each widget
            self._take_over(self._of_cells.get(cell))
            self._of_cells[cell] = self
        if self._shown.widget_id and self._shown.draws_widgets and self.running:
            self._shown_s = time.monotonic()
            self._unasked_s = self._shown_s + UNASKED_S
            self.start()

    def _take_over(self, old: LivePanel | None) -> None:
        """Replace the panel of an earlier run of the cell: a page that is reloaded while the cell runs has
        only that one.
        """
        if old is not None and old._request != self._request and not old.running:
            self._older = [each for each in (old, *old._older) if each.comm is not None]  # others are closed
            for each in self._older:
                each._newer, each._older = self, []

    def send(self, content: Any, buffers: Any = None) -> None:
        for each in (self, *self._older):
            super(LivePanel, each).send(content, buffers)

    def _bundle(self) -> Bundle:
        plain = {"text/plain": self.summary()}
        return plain if self.comm is None else {**plain, **widget_bundle(self.model_id)}

    def finish(self) -> None:
        """Put a picture of the present content in the place of its last display, and end the panel."""
        self._reread()
        self.end()
        super().finish()

    def stay(self, bundle: Bundle) -> None:
        """Keep the view if widgets are drawn, and store its last picture; else display the picture."""
        if kernel() is None:
            print(bundle["text/plain"])
            return
        if self._shown.widget_id and self._shown.draws_widgets:
            self._shown.rest(lambda: bundle)
        else:
            self._shown.leave(bundle, anywhere=True)
        self._finished.append(self)
        while len(self._finished) > KEEP_FINISHED:
            self._finished.popleft().close()

    # publishing

    @property
    def running(self) -> bool:
        return not self._ended.is_set()

    def start(self) -> None:
        """Begin to publish."""
        if self._thread is None and self.running:
            self._thread = threading.Thread(target=self._run, name="panel", daemon=True)
            self._thread.start()

    def end(self) -> None:
        """Stop publishing, wait for a message being published, and notify the views."""
        if self.running:
            self._ended.set()
            self._watched.set()
            if self._thread is not None and self._thread is not threading.current_thread():
                self._thread.join(2.0)
            self._say({"kind": "done"})

    def _run(self) -> None:
        while self.running:
            watched = self._watched.wait(UNWATCHED_S if self._unasked_s == math.inf else UNASKED_S)
            self._publish(watched)
            self._ended.wait(self.poll_s)

    def _publish(self, watched: bool = True) -> None:
        """Send new data; without a visible view only read them."""
        with self._report_errors(), self._lock:
            now_s = time.monotonic()
            if now_s >= self._unasked_s:
                since_s = now_s - self._shown_s
                self._unasked_s = now_s + since_s if since_s < 0.5 * ABSENT_S else math.inf
                self._send_bokeh()
                self._send_all()
                self._greeted[""] = now_s
            elif not watched:
                self.drain()
                self._shown.redraw(self._fresh_picture)
            elif (message := self.changes()) is not None:
                self._say(*message)

    def _fresh_picture(self) -> Bundle:
        self.refresh()
        return self._picture()

    def _say(self, content: Content, buffers: list[bytes] | None = None) -> None:
        if self._greeted and self.comm is not None:  # else no view can receive it
            self.send(content, buffers)

    # receiving

    def receive(self, content: Any) -> None:
        """Take a message of a browser."""
        if self._newer is not None:
            self._newer.receive(content)
            return
        self._heard_s = time.monotonic()
        with self._report_errors():
            if not isinstance(content, dict) or not isinstance(kind := content.get("kind"), str):
                raise UsageError(f"the page sent {shown(content)}, which is no message; reload it")
            if kind == "hello":
                self._unasked_s = math.inf
                self._greet(content)
                return
            self._say({"kind": "pong", "n": content.get("n")})
            if kind == "ping":
                return
            if kind not in self.keeps_error:
                self.report_error("")  # of an earlier request
            self.on_message(kind, {**content, "asked": field(content, "asked", "int", "None")})

    def _greet(self, content: Content) -> None:
        self.send({"kind": "pong", "n": content.get("n")})
        with self._lock:
            view, now_s = str(content.get("view", "")), time.monotonic()
            if now_s - self._greeted.get(view, -math.inf) < self.poll_s:
                return  # sent again without an answer, and queued behind a cell until now
            self._greeted[view] = now_s
            if content.get("bokeh") and view not in self._equipped:
                self._send_bokeh()
                self._equipped.add(view)
            self._send_all()
            self._greeted[view] = time.monotonic()  # a busy kernel may have taken long to answer

    def _send_bokeh(self) -> None:
        version, script = bokeh_js()
        self.send({"kind": "bokeh", "version": version}, [script])

    def _send_all(self) -> None:
        answer, buffers = self.snapshot()
        state = "running" if self.running else "done"
        self.send({**answer, "kind": "greeting", "state": state, "problem": self._problem}, buffers)
        self._watched.set()

    # troubles

    @contextlib.contextmanager
    def _report_errors(self) -> Any:
        """Show errors of this block under the plot."""
        try:
            yield
        except Exception as error:
            self.report_error(describe_error(error))

    def report_error(self, problem: str) -> None:
        """Show one sentence under the plot until another, or an empty one, replaces it."""
        if problem != self._problem:
            self._problem = problem
            with contextlib.suppress(Exception):  # a broken connection has no place to be shown
                self._say({"kind": "problem", "text": problem})
