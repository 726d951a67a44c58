// The page: routes in the hash, one live document a view, and every text set as text.
//
// The token lives in this tab alone: the session storage survives a reload, and ends with the tab. Documents come as server-sent events over fetch, because an
// EventSource sends no Authorization header.

const API = "api/v1";
const AGAIN_MS = [1000, 2000, 5000, 10000];
const main = document.getElementById("main");
const searchField = document.getElementById("search-text");
const live = document.getElementById("live");
const alertBox = document.getElementById("alert");
const title = document.title;

let token = sessionStorage.getItem("token") ?? "";
let who = ""; // the user's name, once the token was accepted
let open = null; // the AbortController of the view's stream
let question = ""; // what was pasted last

// Elements.

function el(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat(2).filter((child) => child !== null && child !== undefined));
  return made;
}

const link = (href, text) => el("a", { href }, text);
const path = (...parts) => "#/" + parts.map(encodeURIComponent).join("/");
const heading = (text, ...beside) => el("h1", null, text, beside.map((each) => [" ", each]));

const GOOD = new Set(["Ready", "InUse", "Allocated", "True"]);
const BAD = new Set(["NotReady", "Unhealthy", "Failed", "Unreadable"]);

function state(word) {
  const tone = GOOD.has(word) ? "good" : BAD.has(word) ? "bad" : "warn";
  return el("span", { class: `state ${tone}` }, word || "–");
}

function mib(amount) {
  const units = ["MiB", "GiB", "TiB", "PiB"];
  let value = amount, unit = 0;
  while (value >= 1024 && unit < units.length - 1) { value /= 1024; unit += 1; }
  const digits = Number.isInteger(value) || value >= 100 ? 0 : 1;
  return `${value.toFixed(digits)} ${units[unit]}`;
}

const part = ({ held, given }) => (given ? held / given : 0);
const percent = (part) => `${(100 * part).toFixed(part && part < 0.1 ? 1 : 0)} %`;

function share({ held, given }, shown, label) {
  const text = `${shown(held)} of ${shown(given)}`;
  const meter = el("div", {
    class: "segments", role: "meter", "aria-label": `${label}: ${text}`,
    "aria-valuemin": 0, "aria-valuemax": Math.max(given, 1), "aria-valuenow": held, "aria-valuetext": text });
  meter.append(segment(held, given));
  return el("div", { class: "amount" }, text, meter);
}

// What is used, beside what is allocated: a thin bar of its own. Unknown is never drawn as zero.
function usedOf(used, field, given, shown, label) {
  const amount = used?.[field] ?? null;
  if (amount === null) return el("div", { class: "used faint" }, "use unknown");
  const some = used.of > used.known ? `, known for ${count(used.known)} of ${count(used.of)}` : "";
  const text = `${shown(amount)} used${some}`;
  const meter = el("div", { class: "segments thin", role: "meter", "aria-label": `${label} in use: ${text}`,
    "aria-valuemin": 0, "aria-valuemax": Math.max(given, amount, 1), "aria-valuenow": amount, "aria-valuetext": text },
    segment(amount, given, { class: "in-use" }));
  return el("div", { class: "used" }, meter, text);
}

const memoryUsed = (used, given, label) => usedOf(used, "memoryMiB", given, mib, label);
const coresUsed = (used, given, label, shown = cores) => usedOf(used, "cores", given, shown, label);

// One line about use that is not known, or not this visitor's to see.
function notes({ usage }) {
  const hidden = usage.hidden && "The use of GPUs that claims of other namespaces hold is not shown.";
  return [usage.problem && `Use is not known: ${usage.problem}.`, hidden].filter(Boolean)
    .map((text) => el("p", { class: "faint note" }, text));
}

// A <meter> is drawn with half its height in Chromium, and its parts differ between browsers.
function segment(amount, given, attributes = {}) {
  const made = el("span", { ...attributes, class: `segment ${attributes.class ?? ""}` });
  made.style.width = `${100 * Math.min(amount / Math.max(given, 1), 1)}%`;
  return made;
}

const beneath = (...parts) => el("div", { class: "beneath" }, parts);
const hundredth = (number) => `${Math.round(number)} %`;
const cores = (hundredths) => (hundredths / 100).toLocaleString("en", { maximumFractionDigits: 2 });
const count = (number) => number.toLocaleString("en");
const counted = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
const tally = (words) => el("ul", { class: "tally" }, Object.entries(words).map(([word, number]) =>
  el("li", null, `${count(number)} `, state(word))));

function since(time) {
  if (!time) return "–";
  const seconds = Math.max(0, Math.round((Date.now() - Date.parse(time)) / 1000));
  const units = [[86400, "d"], [3600, "h"], [60, "min"]];
  const found = units.find(([size]) => seconds >= 2 * size);
  const text = found ? `${Math.floor(seconds / found[0])} ${found[1]}` : `${seconds} s`;
  return el("time", { datetime: time, title: time }, text);
}

function table(caption, columns, rows, { query = null, empty = "none" } = {}) {
  const sorted = query?.get("sort") ?? "";
  const head = columns.map(({ text, order, number }) => {
    if (!order || !query) return el("th", { scope: "col", class: number && "number" }, text);
    const turned = sorted === order ? `-${order}` : order;
    const direction = sorted === order ? "ascending" : sorted === `-${order}` ? "descending" : null;
    const sort = () => go(query, { sort: turned, page: null }, `sort-${order}`);
    const button = el("button", { type: "button", id: `sort-${order}`, onclick: sort }, text);
    return el("th", { scope: "col", "aria-sort": direction, class: number && "number" }, button);
  });
  const body = rows.map((cells) => el("tr", null, cells.map((cell, at) =>
    el(at ? "td" : "th", { scope: at ? null : "row", class: columns[at].number && "number" }, cell))));
  if (!rows.length) {
    body.push(el("tr", null, el("td", { colspan: columns.length, class: "faint" }, empty)));
  }
  return el("div", { class: "scroll", role: "region", "aria-label": caption, tabindex: "0" },
    el("table", null, el("caption", null, caption),
      el("thead", null, el("tr", null, head)), el("tbody", null, body)));
}

function tiles(...pairs) {
  return el("dl", { class: "tiles" }, pairs.map(([label, figure, ...rest]) =>
    el("div", null, el("dt", null, label), el("dd", { class: "figure" }, figure),
      rest.map((each) => el("dd", { class: "faint" }, each)))));
}

const NO_CLAIMS = "You may list claims in no namespace that has any";
const ASK_FOR_RIGHTS = "An administrator gives the right with the roles vgpu-view in a namespace and vgpu-devices-view for all devices.";
const section = (title, ...children) => el("section", null, el("h2", null, title), children);

const facts = (pairs) => el("dl", { class: "facts" },
  pairs.filter(([, value]) => value !== "" && value !== null)
    .flatMap(([label, value]) => [el("dt", null, label), el("dd", null, value)]));

// The last 24 hours: fetched once for several minutes, drawn as SVG.

const HISTORY_MS = 300000;
const WIDTH = 480, HEIGHT = 88;
const histories = new Map(); // by address: when it was asked, and what was found

const svg = (tag, attributes, ...children) => {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
};

// held: the memory in MiB and the compute that are allocated now.
function lastDay(address, held) {
  const box = el("div", { class: "beside", "data-history": address });
  const kept = histories.get(address);
  if (kept?.found) box.append(...charts(kept.found, held));
  else box.append(el("p", { class: "faint note" }, "is being read"));
  if (!kept || Date.now() - kept.at > HISTORY_MS) ask24(address, held);
  return section("Last 24 hours", box);
}

async function ask24(address, held) {
  histories.set(address, { ...histories.get(address), at: Date.now() });
  let found;
  try {
    found = await (await asked(`/history/${address}`)).json();
  } catch (error) {
    found = { problem: error instanceof Refused ? error.message : "the server does not answer" };
  }
  if (!token) return;
  // A problem may be over soon, so it is asked about again with the next change of the view.
  histories.set(address, { at: found.problem ? Date.now() - HISTORY_MS + 30000 : Date.now(), found });
  for (const box of main.querySelectorAll("[data-history]")) {
    if (box.dataset.history === address) box.replaceChildren(...charts(found, held));
  }
}

function charts(found, { memory, compute }) {
  if (found.problem) return [el("p", { class: "faint note" }, `Not known: ${found.problem}.`)];
  return [chart("Memory used", found.memoryMiB, memory, mib, found), chart("Compute used, devices", found.cores, compute, cores, found)];
}

function chart(label, points, held, shown, { start, stepS }) {
  const known = points.filter((each) => each !== null);
  if (!known.length) return el("figure", null, el("figcaption", null, label), el("p", { class: "faint" }, "no values in these 24 hours"));
  const most = Math.max(...known), top = Math.max(held, most, 1);
  const x = (at) => (WIDTH * at / (points.length - 1)).toFixed(1), y = (value) => (HEIGHT - 2 - (HEIGHT - 6) * value / top).toFixed(1);
  const runs = []; // of points that are known; a gap stays a gap
  points.forEach((value, at) => {
    if (value === null) return;
    if (at && points[at - 1] !== null) runs.at(-1).push(at); else runs.push([at]);
  });
  const line = (run) => run.map((at) => `${x(at)},${y(points[at])}`).join(" L");
  const area = (run) => `M${x(run[0])},${HEIGHT} L${line(run)} L${x(run.at(-1))},${HEIGHT} Z`;
  const last = known.at(-1), average = known.reduce((sum, each) => sum + each, 0) / known.length;
  const text = `last ${shown(last)}, on average ${shown(average)}, at most ${shown(most)}`;
  const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": `${label} in the last 24 hours: ${text}` },
    ...runs.map((run) => svg("path", { class: "area", d: area(run) })),
    ...runs.map((run) => svg("path", { class: "line", d: `M${line(run)}` })),
    svg("path", { class: "held", d: `M0,${y(held)} L${WIDTH},${y(held)}` }));
  const hour = (at) => new Date(1000 * at).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
  return el("figure", null,
    el("figcaption", null, el("strong", null, label), el("span", { class: "faint" }, text)), picture,
    el("div", { class: "axis faint" }, el("span", null, hour(start)), el("span", null, `dashed: ${shown(held)} allocated now`), el("span", null, hour(start + stepS * (points.length - 1)))));
}

// Views: from a document to elements.

function idleTile({ idle }) {
  if (!idle) return ["unknown", "needs a Prometheus that answers"];
  return [link("#/idle", count(idle.claims)), idle.claims ? `${mib(idle.memoryMiB)} held, under 5 % of the compute for an hour` : "every claim computed in the last hour"];
}

function fleet(found) {
  const made = [heading("Fleet")];
  const { devices, claims } = found;
  const sums = [];
  if (devices) {
    const { memory, fragmentation } = devices;
    sums.push(
      ["Nodes", link("#/nodes", count(devices.nodes)), tally(devices.nodeStates)],
      ["Devices", count(devices.total), tally(devices.states)],
      ["Memory allocated", percent(part(memory)), share(memory, mib, "Memory"), memoryUsed(devices.used, memory.given, "Memory")],
      ["Compute allocated", percent(part(devices.cores)), share(devices.cores, cores, "Compute, devices"), coresUsed(devices.used, 100 * devices.total, "Compute, devices")],
      ["Fragmentation", percent(fragmentation.ratio), `${mib(fragmentation.splitMiB)} of ${mib(fragmentation.freeMiB)} free memory is on devices that are partly used`],
    );
  } else {
    made.push(el("p", { class: "faint" }, "You may not list gpudevices.vgpu.dev, so devices are not shown."));
  }
  sums.push(
    ["Claims", link("#/claims", count(claims.total)), tally(claims.states)],
    ["Allocated and idle", ...idleTile(found)],
    ["Waiting", link("#/claims?state=Waiting&sort=since", count(claims.waiting)),
      claims.waitingSince ? el("span", null, "the longest for ", since(claims.waitingSince)) : "no claim waits"],
  );
  if (!devices && !found.readsClaims) {
    sums.length = 0;
    made.push(el("p", { class: "faint" }, `${NO_CLAIMS}, so none are shown. ${ASK_FOR_RIGHTS}`));
  }
  if (sums.length) made.push(tiles(...sums), ...notes(found));
  if (devices && !found.usage.hidden) {
    made.push(lastDay("fleet", { memory: devices.memory.held, compute: devices.cores.held }));
  }
  const beside = [];
  if (claims.waiting) {
    beside.push(section("Why they wait", table("Why claims wait",
      [{ text: "Reason" }, { text: "Claims" }],
      Object.entries(claims.reasons).map(([reason, number]) =>
        [reason ? link(`#/claims?state=Waiting&reason=${encodeURIComponent(reason)}`, reason) : "no reason yet", share({ held: number, given: claims.waiting }, count, reason)]))));
  }
  if (devices) {
    beside.push(section("Models", table("Models",
      [{ text: "Model" }, { text: "Devices", number: true }, { text: "Unused", number: true }, { text: "Memory allocated" }],
      devices.models.map((model) => [model.model, count(model.devices), count(model.unused), share(model.memory, mib, `Memory of ${model.model}`)]))));
  }
  made.push(el("div", { class: "beside" }, beside));
  const rows = found.namespaces.items.map((each) => [
    link(`#/claims?namespace=${encodeURIComponent(each.name)}`, each.name),
    count(each.claims), count(each.waiting),
    beneath(mib(each.memoryMiB), memoryUsed(each.used, each.memoryMiB, `Memory of ${each.name}`)),
    beneath(cores(each.cores), coresUsed(each.used, each.cores, `Compute of ${each.name}`))]);
  const { others, namespaces } = found;
  if (others?.claims) {
    rows.push([el("span", { class: "faint" }, "namespaces that you may not read"), count(others.claims), count(others.waiting), mib(others.memoryMiB), cores(others.cores)]);
  }
  made.push(el("h2", null, "Namespaces"), table("Namespaces",
    [{ text: "Namespace" }, { text: "Claims", number: true }, { text: "Waiting", number: true }, { text: "Memory" }, { text: "Compute, devices" }], rows));
  if (namespaces.total > namespaces.items.length) {
    made.push(el("p", { class: "faint" }, `and ${count(namespaces.total - namespaces.items.length)} more namespaces that hold less`));
  }
  return made;
}

function nodes(found, query) {
  return [heading("Nodes"), filter(query, "Name", found.states), ...notes(found),
    table("Nodes", [
      { text: "Node", order: "name" }, { text: "State" }, { text: "Devices", order: "devices", number: true },
      { text: "Memory", order: "memory" }, { text: "Compute, devices", order: "cores" },
      { text: "Free", order: "free", number: true }, { text: "Free on partly used", order: "split", number: true },
      { text: "Claims", order: "claims", number: true }, { text: "Models" }],
    found.items.map((row) => [
      link(path("nodes", row.name), row.name), state(row.state), count(row.devices),
      beneath(share(row.memory, mib, `Memory of ${row.name}`), memoryUsed(row.used, row.memory.given, `Memory of ${row.name}`)),
      beneath(share(row.cores, cores, `Compute of ${row.name}`), coresUsed(row.used, 100 * row.devices, `Compute of ${row.name}`)),
      mib(row.memory.given - row.memory.held), mib(row.splitMiB), count(row.claims), row.models.join(", ")]),
    { query, empty: query.get("text") || query.get("state") ? "no node matches" : "no node has devices yet; kubectl vgpu doctor says what is missing" }),
    pages(found, query)];
}

function node(found) {
  return [heading(`Node ${found.name}`, state(found.state)),
    tiles(["Devices", count(found.devices), tally(found.states), found.models.join(", ")],
      ["Memory allocated", percent(part(found.memory)), share(found.memory, mib, "Memory"), memoryUsed(found.used, found.memory.given, "Memory")],
      ["Compute allocated", percent(part(found.cores)), share(found.cores, cores, "Compute, devices"), coresUsed(found.used, 100 * found.devices, "Compute, devices")],
      ["Claims", count(found.claims), share(found.slots, count, "Slots")]),
    ...notes(found),
    found.usage.hidden ? null : lastDay(`nodes/${encodeURIComponent(found.name)}`, { memory: found.memory.held, compute: found.cores.held }),
    el("h2", null, "Devices"),
    table("Devices", [{ text: "Device" }, { text: "Model" }, { text: "State" }, { text: "Mode" },
      { text: "Memory" }, { text: "Compute" }, { text: "Slots", number: true }, { text: "Held by" }],
    found.items.map((device) => [
      [`${device.index ?? "–"} `, el("code", null, device.uuid || device.name)], device.model, state(device.state), device.mode,
      beneath(segments(device), memoryUsed(device.used, device.memory.given, `Memory of ${device.uuid}`)),
      beneath(share(device.cores, hundredth, `Compute of ${device.uuid}`), coresUsed(device.used, 100, `Compute of ${device.uuid}`, hundredth)),
      `${device.slots.held}/${device.slots.given}`, holders(device)]))];
}

// The memory of a GPU as one bar, with a segment per claim.
function segments({ uuid, memory, holders: named, others }) {
  const parts = named.map((each) => [`${each.namespace}/${each.name}`, each.memoryMiB]);
  if (others.claims) parts.push([`${counted(others.claims, "claim")} of other namespaces`, others.memoryMiB]);
  const rest = memory.held - parts.reduce((sum, [, amount]) => sum + amount, 0);
  if (rest > 0) parts.push(["not available", rest]);
  const text = `${mib(memory.held)} of ${mib(memory.given)}`;
  const bar = el("div", { class: "segments", role: "img", "aria-label": `Memory of ${uuid}: ${text}` },
    parts.map(([name, amount], at) =>
      segment(amount, memory.given, { title: `${name}: ${mib(amount)}`, class: `tone${at % 4}` })));
  return el("div", { class: "amount" }, text, bar);
}

// What a claim uses, as text after what it holds.
function inUse(used) {
  if (!used) return "";
  return `; uses ${mib(used.memoryMiB)}${used.cores === null ? "" : `, ${hundredth(used.cores)}`}`;
}

function holders({ holders: named, others }) {
  const amounts = (use) => ` ${mib(use.memoryMiB)}${use.cores ? `, ${use.cores} %` : ""}${inUse(use.used)}`;
  const items = named.map((each) => el("li", null,
    link(path("claims", each.namespace, each.name), `${each.namespace}/${each.name}`), amounts(each)));
  if (others.claims) {
    items.push(el("li", { class: "faint" }, `${count(others.claims)} of other namespaces`, amounts(others)));
  }
  return items.length ? el("ul", { class: "plain" }, items) : "–";
}

function claims(found, query) {
  const hidden = found.others ? el("p", { class: "faint" },
    `${count(found.others)} claims are in namespaces that you may not read.`) : null;
  return [heading(query.get("state") === "Waiting" ? "Waiting claims" : "Claims"),
    filter(query, "Name or pod", found.states, found.namespaces), ...notes({ usage: { ...found.usage, hidden: false } }),
    table("Claims", [
      { text: "Claim", order: "name" }, { text: "State", order: "state" },
      { text: "Why", order: "reason" }, { text: "Request" }, { text: "Node", order: "node" }, { text: "Pod" },
      { text: "Memory", order: "memory" }, { text: "Compute" }, { text: "For", order: "since", number: true }],
    found.items.map((row) => [
      claimLink(row), state(row.state), why(row), row.asks,
      row.node ? link(path("nodes", row.node), row.node) : "", row.pod,
      row.node ? beneath(mib(row.memoryMiB), memoryUsed(row.used, row.memoryMiB, `Memory of ${row.name}`)) : "–",
      row.node ? beneath(row.cores ? hundredth(row.cores) : "no share", coresUsed(row.used, row.cores || 100, `Compute of ${row.name}`, hundredth)) : "–",
      since(row.since)]),
    { query, empty: emptyClaims(found, query) }),
    pages(found, query), hidden, ofNamespace(found, query.get("namespace"))];
}

function emptyClaims(found, query) {
  if (!found.readsClaims) return NO_CLAIMS;
  return ["text", "state", "namespace", "reason"].some((name) => query.get(name)) ? "no claim matches" : "no pod asks for a GPU";
}

function ofNamespace({ held }, namespace) {
  if (!namespace || !held) return null;
  return lastDay(`namespaces/${encodeURIComponent(namespace)}`, { memory: held.memoryMiB, compute: held.cores });
}

function idle(found, query) {
  const made = [heading("Idle claims"), el("p", null, "Claims that hold devices and at no moment of the last hour used 5 % of their compute: notebooks, or programs that wait.")];
  if (!found.known) return [...made, el("p", { class: "faint note" }, `Not known: ${found.usage.problem || "a Prometheus is needed: set web.prometheus in the configuration"}.`)];
  made.push(...notes({ usage: { ...found.usage, hidden: false } }), table("Idle claims", [
    { text: "Claim", order: "name" }, { text: "Pod" }, { text: "Node", order: "node" }, { text: "Memory", order: "memory" },
    { text: "Most compute in the hour", number: true }, { text: "Held for", order: "since", number: true }],
  found.items.map((row) => [
    claimLink(row), row.pod, link(path("nodes", row.node), row.node),
    beneath(mib(row.memoryMiB), memoryUsed(row.used, row.memoryMiB, `Memory of ${row.name}`)), `${row.peak} %`, since(row.since)]),
  { query, empty: found.readsClaims ? "no claim is idle" : NO_CLAIMS }), pages(found, query));
  return made;
}

// Search.

function search(found) {
  const { text, claims: ofClaims, nodes: ofNodes, devices } = found;
  const total = ofClaims.total + ofNodes.total + devices.total;
  const made = [heading(text ? `Search for ${text}` : "Search")];
  if (!text) return [...made, el("p", { class: "faint" }, "Type a part of the name of a claim, pod, namespace, node or device into the field above.")];
  if (!found.readsClaims) made.push(el("p", { class: "faint note" }, `${NO_CLAIMS}, so claims are not searched.`));
  if (!found.readsDevices) made.push(el("p", { class: "faint note" }, "You may not list gpudevices.vgpu.dev, so nodes and devices are not searched."));
  if (!total) made.push(el("p", null, `Nothing that you may see has ${text} in its name.`));
  const some = (noun, { items, total: all }, columns, cells, more) => items.length ? section(counted(all, noun), table(`Found ${noun}s`, columns, items.map(cells)),
    all > items.length ? el("p", { class: "faint" }, `the first ${count(items.length)}`, more && [" – ", link(more, "all")]) : null) : null;
  const found_ = encodeURIComponent(text);
  made.push(some("claim", ofClaims, [{ text: "Claim" }, { text: "State" }, { text: "Pod" }, { text: "Node" }, { text: "Why" }],
    (row) => [claimLink(row), state(row.state), row.pod, row.node ? link(path("nodes", row.node), row.node) : "", why(row)], `#/claims?text=${found_}`));
  made.push(some("node", ofNodes, [{ text: "Node" }, { text: "State" }, { text: "Devices", number: true }, { text: "Memory" }],
    (row) => [link(path("nodes", row.name), row.name), state(row.state), count(row.devices), share(row.memory, mib, `Memory of ${row.name}`)], `#/nodes?text=${found_}`));
  made.push(some("device", devices, [{ text: "Device" }, { text: "Node" }, { text: "Model" }, { text: "State" }, { text: "Memory" }, { text: "Held by" }],
    (device) => [el("code", null, device.uuid || device.name), link(path("nodes", device.node), device.node), device.model, state(device.state), segments(device), holders(device)]));
  return made;
}

const claimLink = (row) => link(path("claims", row.namespace, row.name), `${row.namespace}/${row.name}`);

// A reason leads to all claims that have it.
const reasonLink = (reason) => el("a", { class: "reason", href: `#/claims?reason=${encodeURIComponent(reason)}` }, reason);

// The reason, and the sentence that the event has.
const why = (row) => row.reason ? [reasonLink(row.reason), el("p", { class: "sentence faint" }, row.message)] : "";

function claim(found) {
  const { why: said } = found;
  const made = [heading(`Claim ${found.namespace}/${found.name}`, state(found.state)),
    facts([["For", since(found.since)], ["Request", found.asks],
      ["Pod", found.pod], ["Node", found.node && link(path("nodes", found.node), found.node)],
      ["Memory", found.node && beneath(mib(found.memoryMiB), memoryUsed(found.used, found.memoryMiB, "Memory"))],
      ["Compute", found.node && beneath(found.cores ? hundredth(found.cores) : "no share", coresUsed(found.used, found.cores || 100, "Compute", hundredth))]])];
  made.push(...notes({ usage: { ...found.usage, hidden: false } }));
  if (found.node) made.push(lastDay(`claims/${encodeURIComponent(found.namespace)}/${encodeURIComponent(found.name)}`, { memory: found.memoryMiB, compute: found.cores }));
  if (!said) return made;
  const text = said.reason || said.message ? [said.reason && found.reason ? reasonLink(said.reason) : said.reason, said.reason && said.message ? ": " : "", said.message ?? ""] : null;
  made.push(el("h2", null, found.node ? "Why here" : "Why it waits"));
  if (text) made.push(el("p", { class: found.node && !found.reason ? "why calm" : "why" }, text));
  if (said.now && said.now !== said.message) made.push(el("p", { class: "why" }, `Now: ${said.now}`));
  if (said.devices.length) made.push(el("ul", null, said.devices.map((each) => el("li", null, each))));
  if (said.group) made.push(el("p", null, said.group.message));
  if (said.preemption) made.push(el("p", null, said.preemption.message));
  for (const text of [said.not_shown, said.not_judged].filter(Boolean)) made.push(el("p", { class: "faint" }, text));
  if (said.way_out) made.push(el("p", { class: "why" }, sentence(said.way_out)));
  made.push(...verdicts(said.nodes, said.alike));
  made.push(el("h2", null, "Conditions"), table("Conditions",
    [{ text: "Type" }, { text: "Status" }, { text: "Reason" }, { text: "Message" }, { text: "For", number: true }],
    found.conditions.map((each) => [each.type, each.status, each.reason, each.message, since(each.since)])));
  return made;
}

const sentence = (text) => `${text[0].toUpperCase()}${text.slice(1)}.`;

function verdicts(found, alike) {
  if (!found.length) return [];
  const device = (each) => `${each.uuid}: ${mib(each.free_memory_mib)} and ${each.free_cores} % free, ${each.free_slots} slots`
    + (each.held_by.length ? `; held by ${each.held_by.join(", ")}` : "");
  const made = [el("h2", null, "Nodes"), table("Verdicts of nodes",
    [{ text: "Node" }, { text: "Verdict" }, { text: "Must end first" }, { text: "Score", number: true }, { text: "Devices" }],
    found.map((each) => [
      link(path("nodes", each.name), each.name), el("span", { class: each.serves ? "good" : "" }, each.verdict),
      (each.end_first ?? []).join(", "), each.score.toFixed(2),
      el("details", null, el("summary", null, counted(each.devices.length, "device")),
        el("ul", null, each.devices.map((one) => el("li", null, device(one)))))]))];
  const more = (each) => `${count(each.count)} more node${each.count > 1 ? "s" : ""}: ${each.verdict} (${each.first.join(", ")}${each.count > each.first.length ? ", …" : ""})`;
  if (alike.length) made.push(el("ul", { class: "plain faint" }, alike.map((each) => el("li", null, more(each)))));
  return made;
}

// Tables: which rows.

function go(query, changes, focus) {
  const next = new URLSearchParams(query);
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === "") next.delete(name); else next.set(name, value);
  }
  wanted = focus;
  const text = next.toString();
  location.hash = location.hash.split("?")[0] + (text ? `?${text}` : "");
}

let wanted = null; // the id of what has the focus once the view is there

function filter(query, label, states, namespaces = null) {
  const apply = (event) => {
    event.preventDefault();
    const form = event.target.closest("form");
    const given = Object.fromEntries(new FormData(form));
    go(query, { ...given, page: null }, event.target.id || document.activeElement.id);
  };
  const option = (value, text, chosen) => el("option", { value, selected: value === chosen }, text);
  const select = (name, text, choices) => el("label", { for: `filter-${name}` }, text,
    el("select", { name, id: `filter-${name}`, onchange: apply }, option("", "all", query.get(name) ?? ""), choices));
  const chosen = query.get("state") ?? "", space = query.get("namespace") ?? "";
  const known = Object.entries(states).map(([word, number]) => option(word, `${word} (${count(number)})`, chosen));
  if (chosen && !(chosen in states)) known.push(option(chosen, `${chosen} (0)`, chosen));
  const spaces = namespaces && [...new Set([...namespaces, ...(space ? [space] : [])])];
  return el("form", { class: "filter", role: "search", onsubmit: apply },
    el("label", { for: "filter-text" }, label,
      el("input", { type: "search", name: "text", id: "filter-text", value: query.get("text") ?? "", maxlength: 253 })),
    select("state", "State", known),
    spaces && select("namespace", "Namespace", spaces.map((each) => option(each, each, space))),
    el("button", { type: "submit", id: "filter-go" }, "Filter"));
}

function pages(found, query) {
  const button = (text, id, page, enabled) => el("button", {
    type: "button", id, disabled: !enabled, onclick: () => go(query, { page }, id) }, text);
  const first = found.total ? (found.page - 1) * found.size + 1 : 0;
  return el("nav", { class: "pages", "aria-label": "Pages" },
    button("Previous", "page-before", found.page - 1, found.page > 1),
    el("span", null, `${count(first)}–${count(first + found.items.length - (found.total ? 1 : 0))} of ${count(found.total)}`),
    button("Next", "page-after", found.page + 1, found.page < found.pages));
}

// Showing.

function show(elements, { keepFocus }) {
  const active = document.activeElement;
  const id = wanted ?? (keepFocus && main.contains(active) ? active.id : "");
  const inside = active?.id && active.id === id && "value" in active && active.type === "search"
    ? [active.value, active.selectionStart, active.selectionEnd] : null;
  const opened = new Set([...main.querySelectorAll("details[open]")].map((each) => detailsKey(each)));
  const scrolled = [...main.querySelectorAll(".scroll")].map((each) => each.scrollLeft);
  main.replaceChildren(...elements.filter(Boolean));
  main.querySelectorAll("details").forEach((each) => { each.open = keepFocus && opened.has(detailsKey(each)); });
  if (keepFocus) main.querySelectorAll(".scroll").forEach((each, at) => { each.scrollLeft = scrolled[at] ?? 0; });
  const found = id ? document.getElementById(id) : null;
  if (found && !found.disabled) {
    found.focus({ preventScroll: true });
    if (inside && found.type === "search") {
      found.value = inside[0];
      found.setSelectionRange(inside[1], inside[2]);
    }
  }
  wanted = null;
}

const detailsKey = (each) => each.closest("tr").firstElementChild.textContent;

function say(text, { on = false } = {}) {
  live.classList.toggle("on", on);
  if (live.textContent !== text) live.textContent = text;
}
function warn(text) { alertBox.textContent = text; }

const VIEWS = [
  [/^\/fleet$/, () => ["/fleet", fleet]],
  [/^\/nodes$/, () => ["/nodes", nodes]],
  [/^\/nodes\/([^/]+)$/, ([name]) => [`/nodes/${name}`, node]],
  [/^\/claims$/, () => ["/claims", claims]],
  [/^\/idle$/, () => ["/idle", idle]],
  [/^\/search$/, () => ["/search", search]],
  [/^\/claims\/([^/]+)\/([^/]+)$/, ([space, name]) => [`/claims/${space}/${name}`, claim]],
];

async function route(event) {
  open?.abort();
  warn("");
  const [place, search = ""] = location.hash.slice(1).split("?");
  mark();
  clearTimeout(typing);
  if (place !== "/search") searchField.value = "";
  else if (document.activeElement !== searchField) searchField.value = new URLSearchParams(search).get("text") ?? "";
  const code = /^\/login\/([\w-]+)$/.exec(place)?.[1];
  if (code) { await redeem(code); return; }
  if (!token) { login(); return; }
  if (!who && !await enter()) return;
  if (!place || place === "/") { location.hash = "#/fleet"; return; }
  if (place === "/what-if") { ask(); return; }
  for (const [pattern, view] of VIEWS) {
    const found = pattern.exec(place);
    if (!found) continue;
    const [address, render] = view(found.slice(1));
    const query = new URLSearchParams(search);
    const moved = event && place !== new URL(event.oldURL).hash.slice(1).split("?")[0];
    await follow(address + (search ? `?${query}` : ""), (document) => render(document, query), moved);
    return;
  }
  say("");
  show([heading("No such page"), el("p", null, link("#/fleet", "Fleet"))], { keepFocus: false });
}

function mark() {
  for (const each of document.querySelectorAll("#views a")) {
    const [place, search = ""] = each.hash.slice(1).split("?");
    const [here, asked = ""] = location.hash.slice(1).split("?");
    const state = new URLSearchParams(asked).get("state") ?? "";
    const wants = new URLSearchParams(search).get("state") ?? "";
    const current = here.startsWith(place) && (place !== "/claims" || (state === "Waiting") === (wants === "Waiting"));
    if (current) each.setAttribute("aria-current", "page"); else each.removeAttribute("aria-current");
  }
}

class Refused extends Error {
  constructor(status, text) { super(text); this.status = status; }
}

async function asked(address, options = {}) {
  const headers = { ...options.headers, Authorization: `Bearer ${token}` };
  const answer = await fetch(API + address, { ...options, headers, cache: "no-store", credentials: "omit" });
  if (answer.ok) return answer;
  let text = answer.statusText;
  try { text = (await answer.json()).error; } catch { /* something in between answered */ }
  throw new Refused(answer.status, text);
}

// Follow a document until the view changes; broken streams are opened again.
async function follow(address, render, moved) {
  const mine = open = new AbortController();
  let failures = 0, shown = false;
  while (open === mine) {
    try {
      const answer = await asked(address, { signal: mine.signal, headers: { Accept: "text/event-stream" } });
      for await (const found of documents(answer.body)) {
        if (open !== mine) return;
        failures = 0;
        const elements = render(found);
        show(elements, { keepFocus: shown || !moved });
        document.title = `${main.querySelector("h1").textContent} – ${title}`;
        if (moved && !shown) {
          scrollTo(0, 0);
          // Who types into the search goes on typing.
          if (document.activeElement !== searchField) main.focus({ preventScroll: true });
        }
        shown = true;
        warn("");
        say(`Live. Changed at ${new Date().toLocaleTimeString()}.`, { on: true });
      }
    } catch (error) {
      if (open !== mine) return;
      if (error instanceof Refused) {
        warn(error.message);
        if (error.status === 401) { forget(); return; }
        if (error.status < 500 && error.status !== 429) { say(""); if (!shown) main.replaceChildren(...notShown(error)); return; }
      }
    }
    say("Not connected. Trying again.");
    await new Promise((done) => setTimeout(done, AGAIN_MS[Math.min(failures, AGAIN_MS.length - 1)]));
    failures += 1;
  }
}

const notShown = ({ status, message }) => [heading(status === 404 ? "Not found" : "Not shown"),
  el("p", null, sentence(message)), status === 403 ? el("p", { class: "faint" }, ASK_FOR_RIGHTS) : null,
  el("p", null, link("#/fleet", "Fleet"))].filter(Boolean);

async function* documents(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const data = /^data: (.*)$/m.exec(part)?.[1];
      if (!data) continue;
      const found = JSON.parse(data);
      if (/^event: refused$/m.test(part)) throw new Refused(found.status, found.error);
      yield found;
    }
  }
}

// Logging in and out.

function visible(on) {
  for (const id of ["views", "search", "user", "leave"]) document.getElementById(id).hidden = !on;
}

function login() {
  visible(false);
  say("");
  show([...document.getElementById("login").content.cloneNode(true).children], { keepFocus: false });
  document.title = title;
  const field = document.getElementById("token");
  field.focus();
  main.querySelector("form").addEventListener("submit", async (event) => {
    event.preventDefault();
    token = field.value.trim();
    warn("");
    if (!await enter()) { field.focus(); return; }
    if (location.hash.length > 2) route(); else location.hash = "#/fleet";
  });
}

// Learn whose the token is, and keep it for a reload; a refused one is forgotten.
async function enter() {
  try {
    who = (await (await asked("/me")).json()).user;
  } catch (error) {
    if (main.querySelector("form") === null) forget();
    token = "";
    warn(error instanceof Refused ? error.message : "The server does not answer.");
    return false;
  }
  sessionStorage.setItem("token", token);
  document.getElementById("user").textContent = who;
  visible(true);
  return true;
}

// Exchange the code of an address that kubectl vgpu web has opened for a token.
async function redeem(code) {
  history.replaceState(null, "", "#/fleet");
  try {
    const answer = await fetch(`local/login?code=${encodeURIComponent(code)}`, { method: "POST", cache: "no-store", credentials: "omit" });
    if (answer.ok) token = (await answer.json()).token;
  } catch { /* the page is not served by kubectl vgpu web */ }
  if (!token) { login(); warn("This address has logged somebody in before. Run kubectl vgpu web again, or paste a token."); return; }
  route();
}

function forget() {
  token = "";
  who = "";
  sessionStorage.removeItem("token");
  question = "";
  histories.clear();
  searchField.value = "";
  open?.abort();
  open = null;
  login();
}

document.getElementById("leave").addEventListener("click", () => { forget(); warn(""); });

// The search field: what is typed is searched for after a short pause.

let typing = 0;
function seek() {
  clearTimeout(typing);
  const place = `#/search?text=${encodeURIComponent(searchField.value.trim())}`;
  if (location.hash.startsWith("#/search")) location.replace(place); else location.hash = place;
}
searchField.addEventListener("input", () => {
  clearTimeout(typing);
  if (searchField.value.trim().length > 1) typing = setTimeout(seek, 300);
});
document.getElementById("search").addEventListener("submit", (event) => { event.preventDefault(); seek(); });

// What if.

function ask() {
  open = null;
  say("");
  show([...document.getElementById("question").content.cloneNode(true).children], { keepFocus: false });
  document.title = `What if – ${title}`;
  const text = document.getElementById("text"), answer = document.getElementById("answer");
  text.value = question;
  text.focus();
  main.querySelector("form").addEventListener("submit", async (event) => {
    event.preventDefault();
    question = text.value;
    warn("");
    try {
      const found = await (await asked("/what-if", { method: "POST", body: question })).json();
      answer.replaceChildren(...answered(found));
    } catch (error) {
      answer.replaceChildren();
      warn(error instanceof Refused ? error.message : "The server does not answer.");
      if (error.status === 401) forget();
    }
  });
}

function answered(found) {
  const device = (each) => `${each.container}: ${each.uuid}, ${mib(each.memoryMiB)}`
    + (each.cores ? `, ${each.cores} %` : "") + (each.profile ? `, ${each.profile}` : "");
  const lines = (each) => [each.refused, ...each.devices.map(device), each.preemption?.message, each.notJudged,
    ...each.warnings.map((text) => `Warning: ${text}`)].filter(Boolean);
  const made = [el("h2", null, "Where they would go"), table("Answer",
    [{ text: "Pod" }, { text: "Request" }, { text: "Node" }, { text: "Devices or reason" }],
    found.pods.map((each) => [each.name, each.asks, each.node ? link(path("nodes", each.node), each.node) : state("Refused"),
      el("ul", { class: "plain" }, lines(each).map((text) => el("li", null, text)))]))];
  if (found.pods.some((each) => each.preemption?.nodes.length)) made.push(el("p", { class: "faint" },
    "Nobody is evicted here. For the pods after such a pod its victims are ending, and their devices are kept for it."));
  if (found.of !== null) made.push(el("p", { class: "faint" }, `The nodes, for ${found.of}`));
  if (found.wayOut) made.push(el("p", { class: "why" }, sentence(found.wayOut)));
  return [...made, ...verdicts(found.nodes, found.alike)];
}

// The hash is the view's, so the link may not change it.
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
addEventListener("hashchange", route);
route();
