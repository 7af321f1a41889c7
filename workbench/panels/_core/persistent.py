"""Outputs that stay in their cell: a live widget with a kernel, and a picture without one.

JupyterLab shows a saved widget whose kernel is gone as "Error displaying widget: model not found", and
nothing else of the same output. So the picture is a separate output above the widget's, and a style that
comes with it shows one of the two: the picture unless a widget lives below it. The picture is drawn again
when the content has not changed for a while, so that a saved notebook keeps the last state.
"""

from __future__ import annotations

import contextlib
import html
import os
import threading
import uuid
from collections.abc import Callable
from typing import Any

from .jupyter import has_widgets, kernel
from .svg import page

Bundle = dict[str, Any]  # an output for a front end: its content by MIME type
REST_S = 2.0  # without a change, before the picture is drawn anew
_CELL = ".jp-OutputArea-child"
_OURS = f"{_CELL}:has([data-workbench-picture])"
_LIVES = ".workbench-panel, .jupyter-widget-tab"
_DEAD = ".jp-OutputArea-output.jupyter-widgets:not(:has(*))"  # a line of text in place of the widget
STYLE = (
    f"<style>{_OURS}:has(+ {_CELL} :is({_LIVES})) {{ display: none }} {_OURS} + {_CELL} > {_DEAD} {{ "
    f"display: none }}</style>"
)


class DisplayHandle:
    """The place of a display: its picture, and the widget below it.

    Args:
        asked: True for a widget, False for a picture; None takes a widget if the front end supports them.
    """

    def __init__(self, asked: bool | None) -> None:
        self.asked = asked
        self.picture_id = self.widget_id = ""
        self.draws_widgets = True  # the front end that displays it
        self._drawn: Bundle = {}  # the picture, the last time
        self._widget: Bundle = {}  # if it is one output with the picture
        self._waiting: threading.Timer | None = None
        self._lock = threading.Lock()

    @property
    def widget(self) -> bool:
        """Whether to show a widget."""
        return has_widgets() if self.asked is None else self.asked

    def display(self, picture: Bundle, widget: Bundle) -> None:
        """Show both, or the picture alone; does nothing outside of a notebook.

        Args:
            picture: A bundle of HTML and words.
            widget: The bundle of the live view, without another text than its words.
        """
        if kernel() is None:
            return
        from IPython.display import display

        other = "VSCODE_PID" in os.environ or "COLAB_RELEASE_TAG" in os.environ
        other |= os.environ.get("KAGGLE_KERNEL_RUN_TYPE") == "Interactive"
        self.draws_widgets = other or has_widgets()
        if not self.widget:
            self.picture_id = self.picture_id or uuid.uuid4().hex
            display(picture, raw=True, display_id=self.picture_id)
            return
        self.widget_id = self.widget_id or uuid.uuid4().hex
        if other or not self.draws_widgets:
            # They would show both, and keep the picture of one output.
            self._widget = widget
            display({**picture, **widget}, raw=True, display_id=self.widget_id)
        else:
            self.picture_id = self.picture_id or uuid.uuid4().hex
            display(_beside(picture), raw=True, display_id=self.picture_id)
            # The output above has its words already, if only words are shown.
            display({**widget, "text/plain": ""}, raw=True, display_id=self.widget_id)

    def leave(self, picture: Bundle, *, anywhere: bool = False) -> None:
        """Put a last picture in the place of the view; with `anywhere` display it even without one."""
        if kernel() is None:
            return
        from IPython.display import display, update_display

        with self._lock:
            if self._waiting is not None:
                self._waiting.cancel()
            if self.picture_id:
                if self.widget_id:
                    update_display({"text/html": "", "text/plain": ""}, raw=True, display_id=self.widget_id)
                update_display(picture, raw=True, display_id=self.picture_id)
            elif self.widget_id:
                update_display(picture, raw=True, display_id=self.widget_id)
            elif anywhere:
                display(picture, raw=True)
            self.picture_id = self.widget_id = ""

    def redraw(self, draw: Callable[[], Bundle]) -> None:
        """Draw a changed picture again, if no widget shows the changes."""
        if self.draws_widgets or not (shown := self.picture_id or self.widget_id):
            return
        picture = draw()
        if picture == self._drawn:
            return
        from IPython.display import update_display

        self._drawn = picture
        both = self.picture_id and self.widget_id
        update_display(_beside(picture) if both else picture, raw=True, display_id=shown)

    def changed(self, draw: Callable[[], Bundle]) -> None:
        """Report a change of the content: its picture, `draw()`, is drawn after a while without changes."""
        if self.picture_id:
            with self._lock:
                if self._waiting is not None:
                    self._waiting.cancel()
                self._waiting = threading.Timer(REST_S, self._rested, (draw,))
                self._waiting.daemon = True
                self._waiting.start()

    def rest(self, draw: Callable[[], Bundle]) -> None:
        """Draw the picture now, because nothing will change any more."""
        with self._lock:
            if self._waiting is not None:
                self._waiting.cancel()
        self._rested(draw)

    def _rested(self, draw: Callable[[], Bundle]) -> None:
        if not (shown := self.picture_id or self.widget_id):
            return
        from IPython.display import update_display

        with contextlib.suppress(Exception):  # a kernel that is ending; the picture before this one stays
            both = self.picture_id and self.widget_id
            picture = _beside(draw()) if both else {**draw(), **self._widget}
            update_display(picture, raw=True, display_id=shown)


def _beside(picture: Bundle) -> Bundle:
    """A picture that is hidden while a widget lives below it."""
    return {**picture, "text/html": f'{STYLE}<div data-workbench-picture="">{picture["text/html"]}</div>'}


def captioned(picture: str, result: Any, problem: str = "", more: str = "") -> Bundle:
    """The bundle of a result with its picture.

    Args:
        picture: HTML of the picture.
        result: Text or a `Report`.
        problem: Message of an error, above the picture.
        more: HTML for the folded details.
    """
    picture = _line(problem) + picture
    if isinstance(result, str):
        more = f"<details><summary>details</summary>{more}</details>" if more else ""
        bundle: Bundle = {"text/plain": result, "text/html": _line(result) + picture + more}
    else:
        bundle = result.bundle(picture, more)
    return {**bundle, "text/plain": "\n".join(filter(None, (bundle["text/plain"], problem)))}


def answered(result: Any) -> dict[str, str]:
    """The answer and the details of a result (text or a `Report`), as HTML for a live view."""
    if isinstance(result, str):
        return {"answer": _line(result), "details": ""}
    return {"answer": result.answer(), "details": result.details()}


def _line(plain: str) -> str:
    body = html.escape(plain).replace("\n", "<br>")
    return f'<div style="font-size:13px;line-height:1.5;margin:2px 0 4px">{body}</div>\n' if body else ""


def widget_bundle(model_id: str) -> Bundle:
    """The bundle that displays a widget's view."""
    view = {"version_major": 2, "version_minor": 1, "model_id": model_id}
    return {"application/vnd.jupyter.widget-view+json": view}


class Displayed:
    """An object that displays itself: as a widget if the front end draws one, else as a picture. Subclasses
    have the picture (`svg` or `html`), its words (`summary`) and the widget (`_bundle`).
    """

    on_picture: Callable[[], object] | None = None  # of the whole that contains this
    _shown: DisplayHandle

    def summary(self) -> str:
        """The content in words."""
        return type(self).__name__

    def svg(self) -> str:
        """The content as an `<svg>` element that needs no scripts and no network."""
        raise NotImplementedError

    def html(self) -> str:
        """The picture and the parts below it: HTML without scripts."""
        return page(self.svg(), self.summary())

    def refresh(self) -> Any:
        """Read new data."""

    def _reread(self) -> None:
        """Read new data; an error is shown under the plot."""
        with self._report_errors():
            self.refresh()

    def show(self) -> None:
        """Display it, as a widget if the front end draws one; does nothing outside of a notebook."""
        if kernel() is None:
            return
        self._reread()
        self._shown.display(self._picture(), self._bundle())

    def finish(self) -> None:
        """Put a last picture in the place of the display."""
        self._shown.leave(self._picture())

    def _ipython_display_(self) -> None:
        self.show() if kernel() is not None else print(self.summary())

    def _repr_mimebundle_(self, **options: Any) -> Bundle:
        self._reread()
        return {**self._picture(), **self._bundle()} if self._shown.widget else self._picture()

    def __repr__(self) -> str:
        return self.summary()

    def _bundle(self) -> Bundle:
        """The live view's bundle, if there is one."""
        return {}

    def _report_errors(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def _picture(self) -> Bundle:
        return {"text/html": self.html(), "text/plain": self.summary()}

    def _picture_later(self) -> None:
        """Schedule a new drawing of the picture that a saved notebook keeps."""
        self._shown.changed(self._picture)
        if self.on_picture is not None:
            self.on_picture()
