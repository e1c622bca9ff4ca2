// The run in one sentence: the finding that weighs most, what it cost, and what to do about it.

import { useState } from "preact/hooks"
import { counted, firstAdvice, lasting, whole } from "../base/format"
import { linkTo } from "../base/hash"
import { Markdown } from "../base/markdown"
import { data, lasted } from "../base/store"
import type { Verdict } from "../base/types"

const LEAST_S = 0.05 // a cost below it is not given

export const stepsSaid = (one: Verdict): string => `step ${whole(one.since_step)}${one.until_step < 0 ? " on" : one.until_step > one.since_step ? ` to ${whole(one.until_step)}` : ""}`

export function Sentence() {
  const { answer, overview } = data.value
  const [shown, show] = useState("") // the cause whose page is open
  const [first, ...others] = overview.verdicts
  const cost = first && first.lost_s >= LEAST_S ? ` It cost ${lasting(first.lost_s)}${lasted.value ? ` of ${lasting(Math.max(lasted.value, first.lost_s))}` : ""}.` : ""
  const guide = first && answer.guides[first.cause]
  const toggle = (cause: string) => show(shown === cause ? "" : cause)
  const host = first && overview.ranks.length > 1 ? overview.health.findLast((row) => row.rank === first.rank)?.host : ""
  const isSpecial = first && ["hang", "lost", "failed"].includes(first.cause)
  return (
    <section class={`card sentence ${answer.badge.kind}`} aria-label="the answer">
      <p><b>{`${answer.head}.${cost}`}</b> {answer.detail && <span class="detail">{`${answer.detail[0].toUpperCase()}${answer.detail.slice(1)}.`}</span>}</p>
      {answer.earlier && <p class="advice">{`${answer.earlier}.`}</p>}
      {guide && <div class="advice"><Markdown text={`**First:** ${firstAdvice(guide, first.evidence)}`} /></div>}
      <p class="links">
        {guide && <button class="link" aria-expanded={shown === first.cause} onClick={() => toggle(first.cause)}>what to do</button>}
        {first && overview.ranks.length > 1 && !isSpecial && data.value.maps.length > 0 && <a href={linkTo("ranks", { step: `${first.since_step}`, rank: `${first.rank}` })}>the evidence</a>}
        {host && <span class="quiet">{`rank ${first.rank} is on ${host}`}</span>}
        {others.length > 0 && <details class="others"><summary>{`and ${counted(others.length, "smaller finding")}`}</summary>
          <ul>{others.map((one, at) => <li key={at}><span>{one.sentence || `${one.cause}, rank ${one.rank}, ${stepsSaid(one)}: ${one.evidence}`}</span>{" "}
            {answer.guides[one.cause] && <button class="link" onClick={() => toggle(one.cause)}>what to do</button>}</li>)}</ul></details>}
        {!first && <a href={linkTo("metrics")}>all metrics</a>}
        {overview.problems.length > 0 && <a href={linkTo("config")}>{overview.problems[0].startsWith("not merged") ? "not merged" : "what could not be read"}</a>}
      </p>
      {shown && <div class="guide"><button class="link close" onClick={() => show("")}>close</button><Markdown text={answer.guides[shown]} /></div>}
    </section>
  )
}
