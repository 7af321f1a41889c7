// One file for each view, in the folder that is given: node bundle.js FOLDER
import { build } from "esbuild";

const [folder] = process.argv.slice(2);
const views = ["apply", "clocks", "cluster", "frontier", "inspect", "power", "recurring", "sheet"];
const sources = new URL("../../workbench/panels/static/", import.meta.url).pathname;

await build({
  entryPoints: views.map((view) => `${sources}${view}.js`), outdir: folder, bundle: true, minify: true, format: "esm", target: "es2022", charset: "utf8",
  logLevel: "warning",
});
