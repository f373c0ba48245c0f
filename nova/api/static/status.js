"use strict";
// Requests /status.json every few seconds and shows the values. They are inserted as text, never as markup.

const EVERY = 3000; // milliseconds between two requests
const KEY = "nova-token";
const UNITS = {VCPU: ["VCPU", ""], MEMORY_MB: ["Memory", "MiB"], DISK_GB: ["Disk", "GiB"]};
const byId = (id) => document.getElementById(id);
const SAMPLES = 120; // maximum number in the capacity chart; then the oldest one is dropped
const samples = [];
let timer = null;

function element(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function duration(from, to) {
  const seconds = Math.max(0, Math.round((new Date(to) - new Date(from)) / 1000));
  if (seconds < 120) return `${seconds} s`;
  if (seconds < 7200) return `${Math.floor(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.floor(seconds / 3600)} h` : `${Math.floor(seconds / 86400)} d`;
}

function amount(value, unit) {
  return unit === "MiB" && value >= 10240 ? `${(value / 1024).toFixed(0)} GiB` : `${value.toLocaleString("en")} ${unit}`.trim();
}

function meter({used, total}) {
  const made = element("meter");
  Object.assign(made, {min: 0, max: Math.max(total, 1), high: total * 0.9, optimum: 0, value: used});
  return made;
}

function tile(label, value, below) {
  const made = element("div", undefined, "tile");
  made.append(element("span", label), element("b", value));
  if (below) made.append(below);
  return made;
}

function showTiles(overview) {
  const tiles = [tile("Servers", overview.servers.toLocaleString("en")), tile("Nodes", overview.node_count.toLocaleString("en"))];
  for (const [name, [label, unit]] of Object.entries(UNITS)) {
    const capacity = overview.capacity[name];
    if (capacity) tiles.push(tile(label, `${amount(capacity.used, unit)} of ${amount(capacity.total, unit)}`, meter(capacity)));
  }
  for (const service of overview.services) {
    const disabled = service.disabled ? `, ${service.disabled} disabled` : "";
    tiles.push(tile(service.binary, `${service.up} up`, element("span", `${service.down} down${disabled}`, service.down ? "bad" : "")));
  }
  byId("tiles").replaceChildren(...tiles);
}

function drawing(name, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

function showBoots(boots) {
  const most = Math.max(1, ...boots);
  const chart = byId("boots");
  chart.setAttribute("viewBox", `0 0 ${boots.length || 1} 100`);
  chart.setAttribute("preserveAspectRatio", "none");
  chart.setAttribute("aria-label", `Boots in each of the last ${boots.length} minutes: ${boots.join(", ")}`);
  chart.replaceChildren(...boots.map((count, minute) => {
    const height = count < 0 ? 3 : Math.max(count ? 3 : 1, 100 * count / most);
    return drawing("rect", {x: minute + 0.1, width: 0.8, y: 100 - height, height, class: count > 0 ? "some" : "none"});
  }));
  byId("boots-now").textContent = boots.length ? `${boots.at(-1)} in the last minute, at most ${Math.max(0, ...boots)}` : "";
}

function showCapacity(capacity) {
  samples.push(capacity);
  if (samples.length > SAMPLES) samples.shift();
  const chart = byId("capacity");
  const share = (sample, name) => sample[name] && sample[name].total ? Math.min(1, sample[name].used / sample[name].total) : 0;
  const shown = Object.keys(UNITS).filter((name) => capacity[name]);
  chart.setAttribute("viewBox", `0 0 ${SAMPLES - 1} 102`);
  chart.setAttribute("preserveAspectRatio", "none");
  chart.replaceChildren(...shown.map((name) => drawing("polyline", {
    class: name.toLowerCase(),
    points: samples.map((sample, index) => `${SAMPLES - samples.length + index},${101 - 100 * share(sample, name)}`).join(" ")})));
  const legend = shown.map((name) => element("span", `${UNITS[name][0]} ${Math.round(100 * share(capacity, name))} %`, name.toLowerCase()));
  byId("legend").replaceChildren(...legend);
  chart.setAttribute("aria-label", legend.map((item) => item.textContent).join(", "));
}

function fill(id, items, cells, none) {
  const labels = [...byId(id).tHead.rows[0].cells].map((cell) => cell.textContent);
  const rows = items.map((item) => {
    const row = element("tr");
    row.append(...cells(item).map((cell) => cell instanceof Node ? cell : element("td", cell)));
    [...row.cells].forEach((cell, index) => { cell.dataset.label = labels[index]; });
    return row;
  });
  if (!rows.length) {
    const cell = element("td", none, "none");
    cell.colSpan = 8;
    rows.push(element("tr"));
    rows[0].append(cell);
  }
  byId(id).tBodies[0].replaceChildren(...rows);
}

function waitsFor(operation) {
  switch (operation.state) {
    case "queued": return `${operation.behind || "another operation"} of the same server`;
    case "waiting": return (operation.events || []).length ? operation.events.join(", ") : "a free thread";
    case "host": return `host ${operation.owner.replace(/^compute@/, "").split(":")[0]}`;
    case "conductor": return `conductor ${operation.owner.replace(/^conductor@/, "").split(":")[0]}`;
    case "overdue": return `a conductor that takes the operation over from the lost ${operation.owner}`;
    default: return operation.state;
  }
}

function server(item) {
  const cell = element("td", item.server_name || item.server_uuid);
  cell.title = item.server_uuid;
  return cell;
}

function stateOf(node) {
  if (node.forced_down) return element("td", "forced down", "bad");
  if (!node.up) return element("td", node.last_seen ? "down" : "never seen", "bad");
  if (node.disabled) return element("td", node.reason ? `disabled: ${node.reason}` : "disabled", "odd");
  return element("td", "up", "good");
}

function capacityCell(capacity, unit) {
  const cell = element("td");
  if (capacity) cell.append(meter(capacity), `${amount(capacity.used, unit)} of ${amount(capacity.total, unit)}`);
  return cell;
}

function show(overview) {
  showTiles(overview);
  showBoots(overview.boots || []);
  showCapacity(overview.capacity);
  byId("unfinished").textContent = overview.unfinished > overview.operations.length
    ? `the ${overview.operations.length} oldest of ${overview.unfinished}` : String(overview.unfinished);
  fill("operations", overview.operations, (item) => [
    duration(item.since, overview.at), server(item), item.project_id || "", item.operation,
    (item.step || "") + (item.attempt > 1 ? ` (attempt ${item.attempt})` : ""), waitsFor(item), item.request_id], "Nothing.");
  fill("failures", overview.failures, (item) => [
    item.at ? duration(item.at, overview.at) : "", server(item), item.project_id || "", item.operation,
    item.message || "", item.request_id], "Nothing.");
  byId("nodes-shown").textContent = overview.node_count > overview.nodes.length
    ? `${overview.nodes.length} of ${overview.node_count}: failed nodes first, then the busiest` : "";
  fill("nodes", overview.nodes, (item) => [
    item.host === item.name ? item.host : `${item.host} (${item.name})`, stateOf(item), String(item.servers),
    String(item.under_way), item.failed_builds ? element("td", String(item.failed_builds), "odd") : "0",
    ...Object.entries(UNITS).map(([name, [, unit]]) => capacityCell((item.capacity || {})[name], unit))], "None yet.");
  byId("message").textContent = `As of ${new Date(overview.at).toLocaleTimeString()}`;
}

function requestToken(message) {
  sessionStorage.removeItem(KEY);
  byId("message").textContent = message;
  byId("shown").hidden = byId("leave").hidden = true;
  byId("enter").hidden = false;
}

async function update() {
  clearTimeout(timer);
  const token = sessionStorage.getItem(KEY);
  try {
    const answer = await fetch("status.json", {headers: token ? {"X-Auth-Token": token} : {}, cache: "no-store"});
    if (answer.status === 401 || answer.status === 403) {
      requestToken(token ? "This token is not allowed to see the status, or has expired." : "Enter a token.");
      return;
    }
    if (!answer.ok) throw new Error(`Nova responded with ${answer.status}`);
    show(await answer.json());
    byId("enter").hidden = true;
    byId("shown").hidden = false;
    byId("leave").hidden = !token;
  } catch (error) {
    byId("message").textContent = `No response: ${error.message}. The values are outdated.`;
  }
  timer = setTimeout(update, document.hidden ? EVERY * 10 : EVERY);
}

byId("enter").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(KEY, byId("token").value.trim());
  byId("token").value = "";
  update();
});
byId("leave").addEventListener("click", () => requestToken("Signed out."));
document.addEventListener("visibilitychange", () => { if (!document.hidden && byId("enter").hidden) update(); });
update();
