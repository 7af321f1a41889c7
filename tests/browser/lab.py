"""A JupyterLab of one's own, driven by Chromium: for the browser tests and the pictures in docs."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import nbformat
from playwright.sync_api import Browser, JSHandle, Page, Playwright, TimeoutError, sync_playwright

REPOSITORY = Path(__file__).resolve().parent.parent.parent
# A wait ends with what it waits for: only a test that fails waits so long, or one on a machine that is busy.
PATIENCE_S = 400.0
LIGHT = "JupyterLab Light"
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-default-apps",
    "--no-first-run",
    "--disable-dev-shm-usage",
    "--disable-domain-reliability",
)

# Looks at the panel that is shown last, as {points of each GPU, power and limit seen last, words}.
LOOK = """() => {
  const root = [...document.querySelectorAll('.workbench-panel')].at(-1);
  if (!root?.workbench) return null;
  const of = (selector) => root.querySelector(selector)?.textContent ?? '';
  const { series, plots, marks, colours } = root.workbench;
  return {
    points: series.map((one) => one.length),
    first: series.map((one) => one.columns[0][0]),
    time: series.map((one) => one.last(0)),
    power: series.map((one) => one.last(1)),
    limit: series.map((one) => one.last(2)),
    drawn: plots.layers.map(([first]) => first.data_source.get_length()),
    x: [plots.x.start, plots.x.end], top: plots.y.power_w.end, rows: plots.rows.length,
    marks: marks(),
    label: plots.rows[0].left[0].major_label_text_color,
    colours: colours(),
    state: of('.workbench-state'), numbers: of('.workbench-numbers'), answer: of('.workbench-answer'), title: of('.workbench-title'),
    badge: !root.querySelector('.workbench-badge').hidden, words: of('.workbench-limit-words'),
    disabled: root.querySelector('.workbench-limit').disabled,
    problem: root.parentElement.querySelector('.workbench-problem').textContent, hint: of('.workbench-hint'),
  };
}"""


# Opens what panels keep behind a line of words, as soon as it is there.
UNFOLD = """new MutationObserver(() => {
  for (const each of document.querySelectorAll('.workbench-more:not([data-seen])')) Object.assign(each, { open: true }).dataset.seen = '';
  for (const each of document.querySelectorAll('.workbench-toggle-details:not([data-seen])')) {
    each.dataset.seen = '';
    each.click();
  }
}).observe(document, { childList: true, subtree: true });"""


class Lab:
    """A running server with a directory of its own. Use it as a context.

    Args:
        directory: Is made.
        front_end: The module that is started: jupyterlab, or notebook (Notebook 7).
        options: Further options of the server.
    """

    def __init__(self, directory: Path, front_end: str = "jupyterlab", options: Sequence[str] = ()) -> None:
        self.directory = directory
        self.front_end, self.options = front_end, options
        self.tree = {"jupyterlab": "lab/tree", "notebook": "notebooks"}[front_end]
        self.notebooks = directory / "notebooks"
        self.token = secrets.token_hex(16)
        self.url = ""

    def __enter__(self) -> Lab:
        self.notebooks.mkdir(parents=True)
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("WORKBENCH_", "JUPYTER"))
        }
        for name in (
            "JUPYTER_CONFIG_DIR",
            "JUPYTER_DATA_DIR",
            "JUPYTER_RUNTIME_DIR",
            "JUPYTERLAB_SETTINGS_DIR",
            "JUPYTERLAB_WORKSPACES_DIR",
            "IPYTHONDIR",
            "HOME",
        ):
            path = self.directory / name.lower()
            path.mkdir()
            environment[name] = str(path)
        settings = Path(environment["JUPYTERLAB_SETTINGS_DIR"]) / "@jupyterlab" / "apputils-extension"
        settings.mkdir(parents=True)
        quiet = {"fetchNews": "false", "checkForUpdates": False}
        (settings / "notification.jupyterlab-settings").write_text(json.dumps(quiet))
        paths = [str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
        self.log = open(self.directory / "server.log", "w")
        command = [
            sys.executable,
            "-m",
            self.front_end,
            "--no-browser",
            "--ServerApp.ip=127.0.0.1",
            "--ServerApp.port=0",
            f"--IdentityProvider.token={self.token}",
            f"--ServerApp.root_dir={self.notebooks}",
            "--LabApp.expose_app_in_browser=True",
            "--JupyterNotebookApp.expose_app_in_browser=True",
            "--ServerApp.allow_root=True",
            *self.options,
        ]
        self.process = subprocess.Popen(
            command, env=environment, stdout=self.log, stderr=self.log, start_new_session=True
        )
        try:
            self.find(Path(environment["JUPYTER_RUNTIME_DIR"]))
        except BaseException:
            self.__exit__()
            raise
        return self

    def find(self, runtime: Path) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline and self.process.poll() is None:
            for info in runtime.glob("jpserver-*.json"):
                with contextlib.suppress(ValueError, OSError):
                    self.url = json.loads(info.read_text())["url"]
                    self.ask("api/status")
                    return
            time.sleep(0.1)
        self.log.flush()
        raise RuntimeError(f"JupyterLab did not start: {(self.directory / 'server.log').read_text()[-2000:]}")

    def ask(self, path: str, method: str = "GET") -> bytes:
        request = urllib.request.Request(
            f"{self.url}{path}", method=method, headers={"Authorization": f"token {self.token}"}
        )
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return bytes(answer.read())

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGINT)
        time.sleep(0.1)
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.log.close()

    def stop_kernels(self) -> None:
        for session in json.loads(self.ask("api/sessions")):
            try:
                self.ask(f"api/sessions/{session['id']}", "DELETE")
            except urllib.error.HTTPError as error:
                self.log.flush()
                error.add_note(f"{error.read()!r}\n{(self.directory / 'server.log').read_text()[-5000:]}")
                raise


class Notebook:
    """A notebook in a page of the browser."""

    def __init__(self, lab: Lab, page: Page, name: str, cells: Sequence[str]) -> None:
        self.lab, self.page, self.path = lab, page, lab.notebooks / f"{name}.ipynb"
        notebook = nbformat.v4.new_notebook(
            cells=[nbformat.v4.new_code_cell(cell) for cell in cells],
            metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
        )
        nbformat.write(notebook, self.path)
        self.enough(False)
        self.open()
        # The server keeps the theme: a test before may have ended in the dark.
        if page.evaluate("document.body.dataset.jpThemeName") != LIGHT:
            self.theme(LIGHT)

    def open(self) -> None:
        """Load the page, again where it is loaded already."""
        self.page.goto(f"{self.lab.url}{self.lab.tree}/{self.path.name}?reset&token={self.lab.token}")
        self.wait(
            """() => {
            const panel = window.jupyterapp?.shell?.currentWidget;
            return panel?.sessionContext?.session?.kernel?.connectionStatus === 'connected' && panel.content.widgets.length > 0;
        }"""
        )

    def run(self, cell: int) -> None:
        """Start a cell and return immediately."""
        self.page.evaluate("""cell => {
            const notebook = window.jupyterapp.shell.currentWidget.content;
            notebook.activeCellIndex = cell;
            notebook.widgets[cell].model.executionCount = null; // of the run before
            window.jupyterapp.commands.execute('notebook:run-cell');
        }""", cell)

    def count(self, cell: int) -> int | None:
        """The execution count of a cell, None while it runs or has not run."""
        return self.page.evaluate(
            "cell => window.jupyterapp.shell.currentWidget.content.widgets[cell].model.executionCount", cell
        )

    def finish(self, cell: int, timeout_s: float = PATIENCE_S) -> None:
        """Wait until a cell has run."""
        script = "cell => window.jupyterapp.shell.currentWidget.content.widgets[cell].model.executionCount !== null"
        self.wait(script, timeout_s, cell)

    def execute(self, *cells: int) -> None:
        """Run cells, each when the one before has run."""
        for cell in cells:
            self.run(cell)
            self.finish(cell)

    def enough(self, yes: bool = True) -> None:
        """End a cell that runs until there is a file `enough`: no speed of a machine ends it before."""
        self.flag("enough", yes)

    def flag(self, name: str, up: bool) -> None:
        """Make or remove a file that a cell waits for."""
        path = self.lab.notebooks / name
        if up:
            path.touch()
        else:
            path.unlink(missing_ok=True)

    def save(self) -> None:
        self.page.evaluate("() => window.jupyterapp.commands.execute('docmanager:save')")

    def theme(self, name: str) -> None:
        self.page.evaluate(
            "theme => window.jupyterapp.commands.execute('apputils:change-theme', { theme })", name
        )
        self.wait("name => document.body.dataset.jpThemeName === name", argument=name)

    def observe(self) -> dict[str, Any] | None:
        """The state of the live panel, None where there is no panel."""
        return self.page.evaluate(LOOK)  # type: ignore[no-any-return]

    def until(self, condition: str, timeout_s: float = PATIENCE_S, *, observe: str = LOOK) -> dict[str, Any]:
        """Wait for a condition (JavaScript) on what `observe` returns, `it`; returns what fulfilled it."""
        script = f"() => {{ const it = ({observe})(); return it !== null && ({condition}) && it; }}"
        try:
            return self.wait(script, timeout_s).json_value()  # type: ignore[no-any-return]
        except TimeoutError as error:
            error.add_note(f"observed last: {json.dumps(self.page.evaluate(observe))[:3000]}")
            raise

    def wait(self, script: str, timeout_s: float = PATIENCE_S, argument: object = None) -> JSHandle:
        """Wait until a script returns something true; returns that."""
        try:
            return self.page.wait_for_function(script, arg=argument, timeout=1000 * timeout_s, polling=50)
        except TimeoutError as error:
            widgets = "window.jupyterapp.shell.currentWidget.content.widgets"
            cells = f"{widgets}.map(({{ model }}) => [model.executionCount, JSON.stringify(model.outputs.toJSON()).slice(0, 2000)])"
            error.add_note(f"the cells, as counts and outputs: {self.page.evaluate(cells)}")
            raise

    def outputs(self, cell: int) -> list[dict[str, Any]]:
        """The outputs of a cell as the notebook would save them."""
        return self.page.evaluate(  # type: ignore[no-any-return]
            "cell => window.jupyterapp.shell.currentWidget.content.widgets[cell].model.outputs.toJSON()", cell
        )


@contextlib.contextmanager
def browser_page(
    chromium: str, *, width: int = 1280, height: int = 900, unfolded: bool = False
) -> Iterator[Page]:
    """A page of a headless Chromium that reaches nothing but this machine; panels show all they have, if
    `unfolded`.
    """
    with sync_playwright() as playwright:
        for page in _page(playwright, chromium, width, height):
            if unfolded:
                page.add_init_script(UNFOLD)
            yield page


def _page(playwright: Playwright, chromium: str, width: int, height: int) -> Iterator[Page]:
    browser = playwright.chromium.launch(executable_path=chromium, args=list(FLAGS))
    try:
        yield page_of_its_own(browser, width, height)
    finally:
        browser.close()


def page_of_its_own(browser: Browser, width: int, height: int) -> Page:
    """A page in a window of its own: the tabs of one window hide one another, and a hidden one draws nothing."""
    context = browser.new_context(viewport={"width": width, "height": height})
    context.route(
        lambda url: not url.startswith(("http://127.0.0.1", "http://localhost", "blob:", "data:")),
        lambda route: route.abort(),
    )
    context.set_default_timeout(1000 * PATIENCE_S)
    return context.new_page()
