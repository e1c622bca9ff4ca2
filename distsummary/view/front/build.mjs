// Bundles the pages into ../bundle: page.js and page.css; graph.js, which only a page with a graph needs; and
// LICENSES.txt, the licences of the packages that are in them.

import { build } from "esbuild"
import { readFileSync, readdirSync, writeFileSync } from "node:fs"

const out = "../bundle"
const { metafile } = await build({
  entryPoints: { page: "main.tsx", graph: "model/layout.ts" }, outdir: out, bundle: true, minify: true, metafile: true,
  format: "iife", target: "es2022", charset: "utf8", legalComments: "none", jsx: "automatic", jsxImportSource: "preact",
})
const packages = new Set(Object.keys(metafile.inputs).map((path) => /node_modules\/((?:@[^/]+\/)?[^/]+)/.exec(path)?.[1]).filter(Boolean))
const licences = [...packages].sort().map((name) => {
  const from = `node_modules/${name}`
  const file = readdirSync(from).find((one) => /^licen[cs]e/i.test(one))
  if (!file) throw new Error(`${name} is in the bundle and has no licence file`)
  const { version } = JSON.parse(readFileSync(`${from}/package.json`, "utf8"))
  return `${name} ${version}\n\n${readFileSync(`${from}/${file}`, "utf8").trim()}\n`
})
writeFileSync(`${out}/LICENSES.txt`, licences.join(`\n${"-".repeat(72)}\n\n`))
