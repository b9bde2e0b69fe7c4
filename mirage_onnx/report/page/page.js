"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const time = (us) => (us === null ? "unknown" : us >= 10 ? us.toFixed(1) : us.toFixed(2)) + " µs";
  const make = (tag, text) => {
    const made = document.createElement(tag);
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const laneOf = (pieces) => {
    let start = 0;
    return pieces.map(([node, place, us]) => {
      const piece = { node, place, us, start };
      start += us;
      return piece;
    });
  };
  const lanes = [laneOf(data.before), laneOf(data.after)];
  const whole = Math.max(...lanes.map((lane) => lane.reduce((sum, p) => sum + p.us, 0)));

  // The timeline: zoom, and the node under the pointer or the arrow keys.
  const strip = document.querySelector(".strip");
  if (strip) {
    const frame = strip.parentElement;
    const readout = document.querySelector(".readout");
    const cursor = strip.querySelector(".cursor");
    const [top, bottom, height] = data.geometry;
    let at = { lane: 0, index: -1 };
    const says = (lane, piece) => {
      const [name, op, us, bound, left, places] = data.nodes[piece.node];
      if (lane === 1 && piece.place >= 0) {
        const [region, nodes, ours, custom] = data.places[piece.place];
        const was = nodes.reduce((sum, n) => sum + (data.nodes[n][2] || 0), 0);
        return `${data.regions[region]}, ${custom || "a custom node"}: ${time(ours)}, in place of ${nodes.length} nodes of ${time(was)}`;
      }
      const where = places.length ? `, in ${places.map((p) => data.regions[data.places[p][0]]).join(", ")}` : "";
      const much = lane === 0 ? us : left;
      return `${name} (${op}): ${time(much)}${bound ? ", the time of its bytes" : ""}${where}`;
    };
    const show = (lane, index, follow) => {
      const piece = lanes[lane][index];
      if (!piece) return;
      at = { lane, index };
      readout.textContent = says(lane, piece);
      cursor.setAttribute("x", (100 * piece.start) / whole + "%");
      cursor.setAttribute("width", Math.max((100 * piece.us) / whole, 0.02) + "%");
      cursor.setAttribute("y", lane === 0 ? top : bottom);
      cursor.setAttribute("height", height);
      if (follow) {
        const x = ((piece.start + piece.us / 2) / whole) * strip.clientWidth;
        if (x < frame.scrollLeft || x > frame.scrollLeft + frame.clientWidth) {
          frame.scrollLeft = x - frame.clientWidth / 2;
        }
      }
    };
    const find = (lane, us) => lanes[lane].findIndex((p) => p.us > 0 && us >= p.start && us < p.start + p.us);
    const point = (event) => {
      const box = strip.getBoundingClientRect();
      const lane = event.clientY - box.top < (top + height + bottom) / 2 ? 0 : 1;
      show(lane, find(lane, ((event.clientX - box.left) / box.width) * whole), false);
    };
    strip.addEventListener("pointermove", point);
    strip.addEventListener("click", point);
    frame.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (step) {
        let next = at.index + step;
        while (lanes[at.lane][next] && lanes[at.lane][next].us <= 0) next += step;
        show(at.lane, next, true);
      } else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
        const lane = event.key === "ArrowDown" ? 1 : 0;
        const from = lanes[at.lane][Math.max(at.index, 0)];
        const same = lanes[lane].findIndex((p) =>
          lane === 1 && from.place >= 0 ? p.place === from.place : p.node === from.node
        );
        show(lane, Math.max(same, 0), true);
      } else if (event.key === "Home" || event.key === "End") {
        show(at.lane, event.key === "Home" ? 0 : lanes[at.lane].length - 1, true);
      } else return;
      event.preventDefault();
    });
    for (const button of document.querySelectorAll("[data-zoom]")) {
      button.addEventListener("click", () => {
        const middle = (frame.scrollLeft + frame.clientWidth / 2) / strip.clientWidth;
        strip.style.width = 100 * Number(button.dataset.zoom) + "%";
        frame.scrollLeft = middle * strip.clientWidth - frame.clientWidth / 2;
        for (const other of document.querySelectorAll("[data-zoom]")) {
          other.setAttribute("aria-pressed", String(other === button));
        }
      });
    }
  }

  // All nodes as a table, made when it is opened: a model has thousands.
  const list = document.querySelector(".all-nodes");
  const fill = () => {
    if (!list || list.firstChild) return;
    const table = make("table");
    const head = table.createTHead().insertRow();
    for (const name of ["#", "node", "operator", "before µs", "left µs", "region"]) {
      const cell = make("th", name);
      cell.scope = "col";
      if (name === "#" || name.endsWith("µs")) cell.className = "n";
      head.append(cell);
    }
    const body = table.createTBody();
    data.nodes.forEach(([name, op, us, bound, left, places], i) => {
      const row = body.insertRow();
      const number = (value) => (value === null ? "unknown" : value.toFixed(2));
      const regions = places.map((p) => data.regions[data.places[p][0]]).join(", ");
      [i + 1, name, op, (bound ? "≥ " : "") + number(us), us === null ? "" : number(left), regions].forEach((text, k) => {
        const cell = make("td", String(text));
        if (k === 0 || k === 3 || k === 4) cell.className = "n";
        row.append(cell);
      });
    });
    list.className = "all-nodes scroll";
    list.append(table);
  };
  if (list) {
    list.parentElement.addEventListener("toggle", fill);
    if (list.parentElement.open) fill();
  }

  // A link to a card moves the focus there; on paper, what is worth it is open.
  addEventListener("hashchange", () => {
    const target = document.getElementById(location.hash.slice(1));
    if (target && target.hasAttribute("tabindex")) target.focus({ preventScroll: true });
  });
  addEventListener("beforeprint", () => {
    for (const part of document.querySelectorAll("details.print")) part.open = true;
  });
  document.documentElement.dataset.ready = "true";
})();
