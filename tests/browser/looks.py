"""Checks of a page that a picture cannot answer: overlapping text and axe-core's findings."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from lab import REPOSITORY
from playwright.sync_api import Page

AXE = Path(
    os.environ.get("WORKBENCH_AXE") or REPOSITORY / "tools/js/node_modules/axe-core/axe.min.js"
)
LEAST_PX = 2  # that two boxes share, both ways, before words are said to lie over one another

# Canvases keep no words, so what is written to them is noted, until they are wiped.
NOTE = """(() => {
  const notes = (globalThis.__written ??= new WeakMap());
  const P = CanvasRenderingContext2D.prototype;
  const { fillText, clearRect } = P;
  const of = ({ canvas }) => {
    const size = `${canvas.width}x${canvas.height}`;
    if (notes.get(canvas)?.size !== size) notes.set(canvas, { size, words: [] });
    return notes.get(canvas);
  };
  P.clearRect = function (...where) {
    of(this).words.length = 0;
    return clearRect.apply(this, where);
  };
  P.fillText = function (words, x, y, ...more) {
    const { actualBoundingBoxLeft: l, actualBoundingBoxRight: r, actualBoundingBoxAscent: a, actualBoundingBoxDescent: d } = this.measureText(words);
    const at = this.getTransform();
    const corners = [[x - l, y - a], [x + r, y - a], [x - l, y + d], [x + r, y + d]].map(([x, y]) => at.transformPoint({ x, y }));
    const [xs, ys] = ["x", "y"].map((name) => corners.map((corner) => corner[name]));
    if (words.trim()) of(this).words.push([words, Math.min(...xs), Math.min(...ys), Math.max(...xs), Math.max(...ys)]);
    return fillText.call(this, words, x, y, ...more);
  };
})()"""

OVERLAPS = """([selector, least]) => {
  const found = [];
  const inside = (box, clip) => [Math.max(box[0], clip[0]), Math.max(box[1], clip[1]), Math.min(box[2], clip[2]), Math.min(box[3], clip[3])];
  const rect = (node) => { const { left, top, right, bottom } = node.getBoundingClientRect(); return [left, top, right, bottom]; };
  const boxes = [];
  const add = (words, box) => {
    if (box[2] - box[0] > 1 && box[3] - box[1] > 1) boxes.push([words, ...box]);
  };
  const walk = (node, clip) => {
    if (node.nodeType === Node.TEXT_NODE) {
      if (!node.data.trim()) return;
      const range = document.createRange();
      range.selectNodeContents(node);
      for (const { left, top, right, bottom } of range.getClientRects()) {
        const thin = 0.12 * (bottom - top); // a line is higher than its letters
        add(node.data.trim(), inside([left, top + thin, right, bottom - thin], clip));
      }
      return;
    }
    if (!(node instanceof Element) && !(node instanceof ShadowRoot)) return;
    if (node instanceof Element) {
      if (["SCRIPT", "STYLE", "OPTION", "TITLE", "DESC"].includes(node.tagName.toUpperCase())) return;
      if (node.parentElement?.tagName === "DETAILS" && !node.parentElement.open && node.tagName !== "SUMMARY") return;
      const style = getComputedStyle(node);
      if (style.display === "none" || style.visibility === "hidden" || style.clipPath !== "none") return;
      if (style.overflow !== "visible") clip = inside(rect(node), clip);
      if (style.position === "sticky") return; // lies over what is scrolled below it
      if (node instanceof HTMLCanvasElement && globalThis.__written?.get(node)) {
        const [left, top] = rect(node);
        const scale = node.getBoundingClientRect().width / node.width || 1;
        for (const [words, ...at] of globalThis.__written.get(node).words) {
          add(words, inside([left + scale * at[0], top + scale * at[1], left + scale * at[2], top + scale * at[3]], clip));
        }
      }
      if (node.shadowRoot) walk(node.shadowRoot, clip);
    }
    for (const child of node.childNodes) walk(child, clip);
  };
  for (const root of document.querySelectorAll(selector)) {
    boxes.length = 0;
    if (!root.getClientRects().length) continue;
    walk(root, [-1e5, -1e5, 1e5, 1e5]);
    boxes.forEach(([words, left, top, right, bottom], n) => {
      for (const [other, l, t, r, b] of boxes.slice(n + 1)) {
        const [across, up] = [Math.min(right, r) - Math.max(left, l), Math.min(bottom, b) - Math.max(top, t)];
        const same = words === other && Math.abs(left - l) < 1 && Math.abs(top - t) < 1; // painted twice
        if (across > least && up > least && !same) found.push(`${words} | ${other} (${across.toFixed(0)} x ${up.toFixed(0)} px at ${l.toFixed(0)}, ${t.toFixed(0)})`);
      }
    });
  }
  return found;
}"""

RUN_AXE = """async (selector) => {
  const roots = [...document.querySelectorAll(selector)].filter((root) => root.getClientRects().length);
  if (!roots.length) return [];
  const { violations } = await axe.run(roots, { resultTypes: ["violations"] });
  return violations.filter(({ impact }) => ["serious", "critical"].includes(impact))
    .flatMap(({ id, nodes }) => nodes.map(({ html, any }) => `${id}: ${html.slice(0, 160)} ${any[0]?.message ?? ''}`));
}"""


SMALL = """([selector, least]) => [...document.querySelectorAll(selector)].flatMap((root) => [...root.querySelectorAll("svg text")])
  .filter((node) => node.getClientRects().length && node.textContent.trim())
  .map((node) => [node.textContent, parseFloat(getComputedStyle(node).fontSize) * node.getScreenCTM().a])
  .filter(([, size]) => size < least).map(([words, size]) => `${words} (${size.toFixed(1)} px)`)"""
LEAST_LETTERS_PX = 9.9


def note_text(page: Page) -> None:
    """From the next load of the page on, record the text drawn on canvases; `overlaps` needs it."""
    page.add_init_script(NOTE)


def overlaps(page: Page, selector: str = ".workbench-panel") -> list[str]:
    """Pairs of words in one panel whose boxes lie over one another, with where and how much."""
    found: list[str] = page.evaluate(OVERLAPS, [selector, LEAST_PX])
    return found


def small_text(page: Page, selector: str = ".workbench-panel") -> list[str]:
    """Words in pictures of the panels whose letters are too small to read."""
    found: list[str] = page.evaluate(SMALL, [selector, LEAST_LETTERS_PX])
    return found


def serious(page: Page, selector: str = ".workbench-panel") -> list[str]:
    """What axe-core finds that is serious or critical in the panels that are shown. Skips without axe-core."""
    if not AXE.is_file():
        pytest.skip(f"axe-core is not installed: run `npm ci` in tools/js, or set WORKBENCH_AXE; {AXE} is missing")
    if not page.evaluate("() => 'axe' in globalThis"):
        page.add_script_tag(content=AXE.read_text(encoding="utf-8"))
    found: list[Any] = page.evaluate(RUN_AXE, selector)
    return [str(each) for each in found]
