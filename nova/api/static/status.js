"use strict";
// Asks /status.json every few seconds, and shows it. Whatever came from elsewhere becomes text, never markup.

const EVERY = 3000; // milliseconds
const KEY = "nova-token";
const UNITS = {VCPU: ["VCPU", ""], MEMORY_MB: ["Memory", "MiB"], DISK_GB: ["Disk", "GiB"]};
const byId = (id) => document.getElementById(id);
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

function fill(id, items, cells, none) {
  const rows = items.map((item) => {
    const row = element("tr");
    row.append(...cells(item).map((cell) => cell instanceof Node ? cell : element("td", cell)));
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
    case "overdue": return `its lost owner ${operation.owner}: a conductor takes it over`;
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
  byId("unfinished").textContent = overview.unfinished > overview.operations.length
    ? `the ${overview.operations.length} oldest of ${overview.unfinished}` : String(overview.unfinished);
  fill("operations", overview.operations, (each) => [
    duration(each.since, overview.at), server(each), each.project_id || "", each.operation,
    (each.step || "") + (each.attempt > 1 ? ` (attempt ${each.attempt})` : ""), waitsFor(each), each.request_id], "Nothing.");
  fill("failures", overview.failures, (each) => [
    each.at ? duration(each.at, overview.at) : "", server(each), each.project_id || "", each.operation,
    each.message || "", each.request_id], "Nothing.");
  byId("nodes-shown").textContent = overview.node_count > overview.nodes.length
    ? `${overview.nodes.length} of ${overview.node_count}: those in trouble, then the busiest` : "";
  fill("nodes", overview.nodes, (each) => [
    each.host === each.name ? each.host : `${each.host} (${each.name})`, stateOf(each), String(each.servers),
    String(each.under_way), each.failed_builds ? element("td", String(each.failed_builds), "odd") : "0",
    ...Object.entries(UNITS).map(([name, [, unit]]) => capacityCell((each.capacity || {})[name], unit))], "None yet.");
  byId("told").textContent = `As of ${new Date(overview.at).toLocaleTimeString()}`;
}

function askForToken(why) {
  sessionStorage.removeItem(KEY);
  byId("told").textContent = why;
  byId("shown").hidden = byId("leave").hidden = true;
  byId("enter").hidden = false;
}

async function look() {
  clearTimeout(timer);
  const token = sessionStorage.getItem(KEY);
  try {
    const answer = await fetch("status.json", {headers: token ? {"X-Auth-Token": token} : {}, cache: "no-store"});
    if (answer.status === 401 || answer.status === 403) {
      askForToken(token ? "That token may not see this, or not any more." : "Who are you?");
      return;
    }
    if (!answer.ok) throw new Error(`Nova answered ${answer.status}`);
    show(await answer.json());
    byId("enter").hidden = true;
    byId("shown").hidden = false;
    byId("leave").hidden = !token;
  } catch (error) {
    byId("told").textContent = `No answer: ${error.message}. What is shown is old.`;
  }
  timer = setTimeout(look, document.hidden ? EVERY * 10 : EVERY);
}

byId("enter").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(KEY, byId("token").value.trim());
  byId("token").value = "";
  look();
});
byId("leave").addEventListener("click", () => askForToken("Forgotten."));
document.addEventListener("visibilitychange", () => { if (!document.hidden && byId("enter").hidden) look(); });
look();
