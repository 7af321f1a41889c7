// @ts-check
// Pictures and tables of the frontier as files.
/** @import { FrontierFile } from "./messages" */
import { button, element, row, save } from "./controls.js";

const PNG_SCALE = 2;
const FILES = [["png", "PNG", "the picture"], ["svg", "SVG", "the picture"], ["csv", "CSV", "the points"], ["parquet", "Parquet", "the points"]];
const TYPES = { svg: "image/svg+xml", csv: "text/csv" };

/** An SVG as PNG. @returns {Promise<Blob>} */
async function png(svg, colours) {
  const text = new TextDecoder().decode(svg).replace("<svg ", `<svg color="${colours.text}" `);
  const src = URL.createObjectURL(new Blob([text], { type: TYPES.svg }));
  const image = new Image();
  await new Promise((resolve, reject) => Object.assign(image, { onload: resolve, onerror: () => reject(new Error("the picture could not be drawn as PNG")), src }));
  const canvas = element("canvas", "", { width: PNG_SCALE * image.width, height: PNG_SCALE * image.height });
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  context.fillStyle = colours.background;
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(image, 0, 0, canvas.width, canvas.height);
  URL.revokeObjectURL(src);
  return new Promise((resolve) => canvas.toBlob(/** @type {BlobCallback} */ (resolve), "image/png"));
}

/** Pictures and tables to be kept as files. */
export class Files {
  constructor(post, page) {
    const view = Math.random().toString(36).slice(2); // there may be several views of one panel
    this.page = page;
    this.view = view;
    this.buttons = FILES.map(([what, words, kept]) => button(`do-${what}`, words, `${kept} as ${words}`, () => post({ kind: "export", what, view })));
    this.root = row(element("span", "workbench-faint", "save as"), ...this.buttons);
  }
  /** A file has come; it is another view's perhaps. */
  async take(/** @type {FrontierFile} */ { view, what, name }, data) {
    if (view && view !== this.view) return;
    if (what === "png") save(name, await png(data, this.page.colours()), "image/png");
    else save(name, /** @type {BlobPart} */ (data), TYPES[what] ?? "application/octet-stream");
  }
}
