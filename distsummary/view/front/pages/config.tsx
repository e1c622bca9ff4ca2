// Config: what was trained, with which settings, code and data; what could not be read; the state of each rank.

import type { ComponentChildren } from "preact"
import { counted, given, visible, whole } from "../base/format"
import { data } from "../base/store"

const ABOVE = ["state", "ranks", "attempts"] // facts that the header has
const GOOD = ["finished", "running"]
const ROWS = 64 // of a table that may be long
const DERIVED: Record<string, string> = { "learning rate": "learning rate at the end", "batch size": "batch size of the loader" }

// Numbers of metrics come as JSON in a text: as people read them.
const readable = (value: unknown): string =>
  typeof value === "string" && /^\{"[^{}]*\}$/.test(value) ? value.slice(1, -1).replace(/"/g, "").replace(/-?\d+\.\d{6,}(e[+-]?\d+)?/g, (one) => given(Number(Number(one).toPrecision(5)))) : given(value)

// A name that is too long for its column is broken where it has a dot or a bar.
const broken = (name: string) => visible(name).split(/(?<=[._/])/).flatMap((part) => [part, <wbr />])

function Facts({ title, entries }: { title: string; entries: [string, unknown][] }) {
  if (!entries.length) return null
  return <section class="card facts"><h2>{title}</h2><table><tbody>{entries.map(([name, value]) => <tr key={name}><th scope="row">{broken(name)}</th><td>{readable(value)}</td></tr>)}</tbody></table></section>
}

const Notice = ({ title, children }: { title: string; children: ComponentChildren }) => <section class="card warning"><h2>{title}</h2>{children}</section>

function Health() {
  const rows = data.value.overview.health
  if (!rows.length) return null
  const isBad = (row: (typeof rows)[number]) => !GOOD.includes(row.state) || row.dropped > 0 || Boolean(row.error)
  const sorted = [...rows].sort((a, b) => Number(isBad(b)) - Number(isBad(a)))
  return (
    <section class="card"><h2>Ranks</h2><div class="scroll" tabIndex={0}><table class="ranks"><thead><tr>{["rank", "attempt", "state", "last step", "values dropped", "host", "error"].map((name) => <th key={name} scope="col" class={["rank", "attempt", "last step", "values dropped"].includes(name) ? "number" : ""}>{name}</th>)}</tr></thead>
      <tbody>{sorted.slice(0, ROWS).map((row) => <tr key={`${row.rank} ${row.attempt}`} class={isBad(row) ? "odd" : ""}>
        <td class="number">{whole(row.rank)}</td><td class="number">{whole(row.attempt)}</td><td>{row.state}</td><td class="number">{row.step < 0 ? "-" : whole(row.step)}</td>
        <td class="number">{row.dropped < 0 ? "-" : whole(row.dropped)}</td><td>{row.host}</td><td>{row.error}</td></tr>)}</tbody></table></div>
      {rows.length > ROWS && <p class="quiet">{`and ${whole(rows.length - ROWS)} more: distsummary status`}</p>}
    </section>
  )
}

export function Config() {
  const { overview } = data.value
  const facts = Object.entries(overview.facts).filter(([name]) => !ABOVE.includes(name))
  return (
    <>
      {overview.problems.length > 0 && <Notice title="What could not be read or is missing"><ul>{overview.problems.map((text) => <li key={text}>{text}</li>)}</ul></Notice>}
      {overview.removed && <p class="card quiet">{overview.removed}</p>}
      {overview.conflicts.length > 0 && <Notice title="What the ranks disagree on"><table><tbody>{overview.conflicts.map(({ field, by_rank: values }) => <tr key={field}><th scope="row">{field}</th>
        <td>{Object.entries(values).map(([rank, value]) => `rank ${rank}: ${JSON.stringify(value)}`).join(", ")}</td></tr>)}</tbody></table></Notice>}
      <div class="columns">
        <Facts title="Settings" entries={Object.entries(overview.config)} />
        <Facts title="What was trained" entries={facts.filter(([name]) => !name.startsWith("code.") && !name.startsWith("rank ")).map(([name, value]) => [DERIVED[name] ?? name, value])} />
        <Facts title="Code" entries={facts.filter(([name]) => name.startsWith("code.")).map(([name, value]) => [name.slice(5), value])} />
        <Facts title="Where ranks differ" entries={facts.filter(([name]) => name.startsWith("rank "))} />
      </div>
      <Health />
      {!facts.length && !Object.keys(overview.config).length && !overview.health.length && <p class="card quiet">{`Neither settings nor code were recorded; ${counted(overview.ranks.length, "rank")} recorded values.`}</p>}
    </>
  )
}
