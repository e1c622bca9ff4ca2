// Ranks next to each other: who stands out, at which steps, and where each rank spent a step.

import { counted, ranges } from "../base/format"
import { chosenMap, chosenStep, put } from "../base/hash"
import { data, isAlone } from "../base/store"
import { AxisChoice } from "../charts/axis_choice"
import { Heat, Scale } from "../charts/heat"
import { proof } from "./proof"
import { Steps } from "./steps"
import { Verdicts } from "./verdicts"

export function Ranks() {
  const { maps, overview, anatomy } = data.value
  const map = maps.find((one) => one.tag === (chosenMap.value || proof())) ?? maps[0]
  const height = map ? Math.max(6, Math.min(22, Math.floor(440 / map.rows))) : 0
  const choose = (step: number, rank: number | null) => put({ step, rank })
  return (
    <>
      <Verdicts />
      {map && <figure class="card">
        <figcaption>
          <span class="chips" role="group" aria-label="what the map shows">{maps.map((one) => <button key={one.tag} class="chip" aria-pressed={one === map} onClick={() => put({ map: one.tag })}>{one.title.toLowerCase()}</button>)}</span>
          <AxisChoice />
        </figcaption>
        <figcaption><b class="tag">{`${map.title.toLowerCase()} of each rank against ${overview.ranks.length === 2 ? "the other" : "the median of the ranks"}`}</b><Scale map={map} /><span class="quiet">{anatomy ? "click a step to open it" : ""}</span></figcaption>
        <Heat map={map} rowHeight={height} onChoose={choose} />
      </figure>}
      {anatomy && <Steps anatomy={anatomy} step={chosenStep.value ?? overview.verdicts[0]?.since_step ?? anatomy.steps[anatomy.steps.length >> 1]} />}
      {!map && !isAlone.value && <p class="card quiet">{`${counted(overview.ranks.length, "rank")} (${ranges(overview.ranks)}) recorded no times of their steps: run.steps(loader) measures them.`}</p>}
      {isAlone.value && <p class="card quiet">This run has one rank: there are no others to compare it with. Its phases are under Metrics, zz_perf.</p>}
    </>
  )
}
