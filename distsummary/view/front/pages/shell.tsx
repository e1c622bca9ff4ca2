// The frame of all pages: navigation at the left, the run and how it is at the top.

import type { ComponentType } from "preact"
import { counted, lasting, moment, whole } from "../base/format"
import { isPaused } from "../base/follow"
import { linkTo, route, type Route } from "../base/hash"
import { changeTheme, data, lasted, said } from "../base/store"
import { isServed } from "../base/source"
import { Answer } from "../answer/answer"
import { Metrics } from "../metrics/metrics"
import { Ranks } from "../ranks/ranks"
import { Model, hasModel } from "../model/model"
import { Config } from "./config"
import { System, systemTags } from "./system"
import { Compare, Landscape, Media, countOfMedia } from "./ported"

interface Entry { name: Route; title: string; Page: ComponentType; count: () => number | null; missing: () => string }

// What each page shows, how much there is of it, and how one records it when there is nothing.
export const PAGES: Entry[] = [
  { name: "answer", title: "Answer", Page: Answer, count: () => null, missing: () => "" },
  { name: "compare", title: "Compare", Page: Compare, count: () => data.value.compare?.runs.length ?? null, missing: () => "" },
  { name: "metrics", title: "Metrics", Page: Metrics, count: () => data.value.tags.length, missing: () => (data.value.tags.length ? "" : "No scalar was recorded: run.log(loss=loss) records one.") },
  { name: "ranks", title: "Ranks", Page: Ranks, count: () => data.value.overview.ranks.length, missing: () => "" },
  { name: "model", title: "Model", Page: Model, count: () => null, missing: () => (hasModel() ? "" : "Nothing of the model was recorded: ds.init(graph=\"modules\", norms=True, histograms=\".*\") records its graph, norms and histograms.") },
  { name: "media", title: "Media", Page: Media, count: countOfMedia, missing: () => (data.value.media ? "" : "No image, text, sound or PR curve was recorded: run.image(\"input\", picture) records one.") },
  { name: "landscape", title: "Landscape", Page: Landscape, count: () => (data.value.landscapes as { shown: unknown[] } | null)?.shown.length ?? null, missing: () => (data.value.landscapes ? "" : "No loss landscape was made: ds.landscape or distsummary landscape makes one from kept checkpoints.") },
  { name: "system", title: "System", Page: System, count: () => systemTags().length || null, missing: () => "" },
  { name: "config", title: "Config", Page: Config, count: () => null, missing: () => "" },
]

export const pagesOfRun = (): Entry[] => PAGES.filter((one) => one.name !== "compare" || data.value.compare)

function Nav({ hasList }: { hasList: boolean }) {
  return (
    <nav aria-label="pages of the run">
      <p class="home">{hasList ? <><a href="?">runs</a> / </> : null}<b>{data.value.overview.name}</b></p>
      <ul>{hasList && <li class="back"><a href="?">‹ runs</a></li>}{pagesOfRun().map(({ name, title, count, missing }, at) => {
        const number = count()
        return <li key={name}><a ref={route.value === name ? (link) => link?.scrollIntoView({ block: "nearest", inline: "nearest" }) : undefined} href={linkTo(name)} aria-current={route.value === name ? "page" : undefined} class={missing() ? "empty" : ""} title={`key ${at + 1}`}>
          {title}{number != null && <span>{whole(number)}</span>}</a></li>
      })}</ul>
    </nav>
  )
}

export function Badge() {
  const { text, kind } = data.value.answer.badge
  return <span class={`badge ${kind}`}>{text}</span>
}

function Header() {
  const { overview } = data.value
  const { ranks, world_size: world, steps, started } = overview
  const facts = [
    ranks.length === world ? counted(world, "rank") : `${whole(ranks.length)} of ${counted(world, "rank")}`,
    steps ? (steps[0] === 1 ? counted(steps[1], "step") : `steps ${whole(steps[0])} to ${whole(steps[1])}`) : "",
    lasted.value ? lasting(lasted.value) : "", started ? moment(started).slice(0, 16) : "",
  ]
  return (
    <header>
      <h1>{overview.name}</h1><Badge />
      <span class="quiet">{facts.filter(Boolean).join(" · ")}</span>
      <span class="end">
        {isServed && <button id="live" aria-pressed={!isPaused.value} title="key p" onClick={() => { isPaused.value = !isPaused.value }}>live</button>}
        <button title="key d" aria-label="dark or light" onClick={changeTheme}>◐</button>
      </span>
      {said.value && <p class="said" role="status">{said.value}</p>}
    </header>
  )
}

export function Shell({ hasList }: { hasList: boolean }) {
  const entry = pagesOfRun().find((one) => one.name === route.value) ?? PAGES[0]
  const missing = entry.missing()
  return (
    <>
      <Nav hasList={hasList} />
      <div class="page">
        <Header />
        <main data-route={entry.name} tabIndex={-1}>{missing ? <p class="card quiet">{missing}</p> : <entry.Page />}</main>
        <footer>{`${data.value.overview.path}, as it was at ${moment(data.value.overview.made)}. Keys: 1 to ${pagesOfRun().length} pages, / search, d dark or light${isServed ? ", p pause" : ""}. Made by distsummary.`}</footer>
      </div>
    </>
  )
}
