"""Pages of the gallery: one file each, with the panel's scripts, BokehJS and a recording in it.

They need no kernel and no network. `tools.gallery` makes the recordings.
"""

from __future__ import annotations

import gzip
import html
import json
import shutil
from pathlib import Path

from workbench.panels._core.live import STATIC, bokeh_js, script

HERE = Path(__file__).resolve().parent
DATA = HERE / "gallery" / "data"

# Panel: the script that draws it, its title, what can be tried, its thumbnail.
PANELS = {
    "power": ("power", "Power", "A running cell: power, limit, clock, iterations.", "power-light.png"),
    "period": ("inspect", "Iterations", "The iterations of a measurement, overlaid.", "period-look.png"),
    "frontier": (
        "frontier", "Frontier", "Energy against time. Step along it with the slider.", "frontier-light.png",
    ),
    "clocks": ("clocks", "Tuning", "What a tuned training has tried, and what it saved.", "clocks-light.png"),
    "recurring": (
        "recurring", "Recurring job", "Estimated costs of batch sizes over runs.", "recurring-light.png",
    ),
    "apply": ("apply", "Apply", "What is active, what would change, and with which rights.", "apply-light.png"),
    "cluster": ("cluster", "Cluster", "A job log under several policies.", "cluster-light.png"),
    "log": ("runs", "Log", "Every run, to sort, group and compare.", "log-light.png"),
}

# JupyterLab's colours, which the panels ask for; light ones stand beside each use.
DARK = {
    "ui-font-color0": "#fff", "ui-font-color1": "#e0e0e0", "ui-font-color2": "#a6a6a6", "ui-font-color3": "#757575",
    "layout-color0": "#111", "layout-color1": "#212121", "layout-color2": "#424242", "layout-color3": "#616161",
    "border-color0": "#757575", "border-color1": "#616161", "border-color2": "#424242", "border-color3": "#212121",
    "brand-color0": "#90caf9", "brand-color1": "#64b5f6", "brand-color2": "#1565c0", "brand-color3": "#0d47a1",
    "error-color0": "#ef9a9a", "error-color1": "#e57373", "warn-color0": "#ffcc80", "warn-color1": "#ffb74d",
    "success-color0": "#a5d6a7", "success-color1": "#81c784", "info-color0": "#80deea", "info-color1": "#4dd0e1",
}

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>TITLE: a panel of the GPU Energy Workbench</title>
<style>
PANEL_CSS
body { margin: 0 auto; max-width: 1100px; padding: 12px 20px 40px; background: #fff; color: #212121; font: 14px/1.5 system-ui, sans-serif; }
body[data-jp-theme-light="false"] { background: #111; color: #e0e0e0; color-scheme: dark; DARK_VARIABLES }
header { display: flex; gap: 16px; align-items: baseline; margin-bottom: 12px; }
header a { color: inherit; }
header p { flex: 1; margin: 0; opacity: 0.8; }
header button { font: inherit; color: inherit; background: none; border: 1px solid currentcolor; border-radius: 4px; }
</style>
</head>
<body data-jp-theme-light="true">
<header><a href="index.html">Gallery</a><p>A recording on a simulated GPU. WHAT</p><button type="button">Light or dark</button></header>
<main id="panel"></main>
<noscript>WORDS</noscript>
<script>BOKEH</script>
<script type="application/json" id="recording">RECORDING</script>
<script type="module">
const light = (is) => { document.body.dataset.jpThemeLight = String(is); };
light(!matchMedia("(prefers-color-scheme: dark)").matches);
document.querySelector("header button").onclick = () => light(document.body.dataset.jpThemeLight === "false");
globalThis.__workbenchPage = { bokeh: globalThis.Bokeh, asked: -Infinity, arrived: new EventTarget() };
const { content, buffers } = JSON.parse(document.getElementById("recording").textContent);
const views = buffers.map((each) => new DataView(Uint8Array.from(atob(each), (letter) => letter.charCodeAt(0)).buffer));
const ASKS = new Set(["run", "stop", "apply", "undo", "default", "limit", "start", "cancel", "export", "import", "act", "level", "seconds", "search",
  "objective", "slowdown", "eta", "axes", "set", "open", "distribution", "undo_all", "begin", "pause", "hold", "step"]);
const heard = new Set();
const say = (message, data = []) => setTimeout(() => heard.forEach((each) => each(message, data)), 0);
const model = {
  on: (event, hear) => heard.add(hear),
  off: (event, hear) => heard.delete(hear),
  get: () => undefined,
  set: () => undefined,
  save_changes: () => undefined,
  send(message) {
    say({ kind: "pong", n: message.n });
    if (message.kind === "hello") say(content, views);
    if (ASKS.has(message.kind)) say({ kind: "problem", text: "This takes a kernel: run the panel in a notebook." });
  },
};
const source = new Blob([MODULE], { type: "text/javascript" });
const { default: view } = await import(URL.createObjectURL(source));
await view.render({ model, el: document.getElementById("panel") });
</script>
</body>
</html>
"""


def page(name: str) -> str:
    """The HTML of a panel's page."""
    view, title, what, _ = PANELS[name]
    recording = json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))
    _, bokeh = bokeh_js()
    parts = {
        "TITLE": html.escape(title), "WHAT": html.escape(what), "WORDS": html.escape(recording["words"]),
        "PANEL_CSS": (STATIC / "panel.css").read_text(encoding="utf-8"),
        "DARK_VARIABLES": " ".join(f"--jp-{name}: {colour};" for name, colour in DARK.items()),
        "BOKEH": _in_script(gzip.decompress(bokeh).decode("utf-8")),
        "RECORDING": _in_script(json.dumps(recording, ensure_ascii=False)),
        "MODULE": _in_script(json.dumps(script(view))),
    }
    found = PAGE
    for part in ("MODULE", "TITLE", "WHAT", "WORDS", "PANEL_CSS", "DARK_VARIABLES", "RECORDING", "BOKEH"):
        before, _, after = found.rpartition(part) if part in ("MODULE", "RECORDING") else found.partition(part)
        found = before + parts[part] + after
    return found


def _in_script(text: str) -> str:
    """Text that does not end the script element that it stands in."""
    return text.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def cards() -> str:
    """The gallery's page: a thumbnail a panel, which leads to it."""
    found = "".join(
        f'<a href="{name}.html"><img src="{picture}" alt="" loading="lazy">'
        f"<span><b>{title}</b>{html.escape(what)}</span></a>\n"
        for name, (_, title, what, picture) in PANELS.items()
    )
    return f'<div class="gallery">\n{found}</div>\n'


def write(folder: Path) -> None:
    """All pages and their thumbnails, in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, (*_, picture) in PANELS.items():
        (folder / f"{name}.html").write_text(page(name), encoding="utf-8")
        shutil.copy(HERE / "images" / picture, folder / picture)
