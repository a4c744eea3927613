"use strict";
// State is the address: #SIDE/dimension/NUMBER or #SIDE/image/NUMBER. All texts of the
// data enter the page as text nodes and attributes, never as markup.
(() => {
const $ = (id) => document.getElementById(id);
const ARRAYS = { u1: Uint8Array, i2: Int16Array, i4: Int32Array, f4: Float32Array };
const SCALE = 32767;
const PAGE = 60;
const data = JSON.parse($("data").textContent);

function bytes(base64) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(base64);
  const text = atob(base64);
  const out = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) out[i] = text.charCodeAt(i);
  return out;
}

function unpack(packed) {
  const values = new ARRAYS[packed.type](bytes(packed.data).buffer);
  values.wide = packed.width;
  return values;
}

function el(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key === "onclick") node.addEventListener("click", value);
    else if (value !== undefined && value !== false) node.setAttribute(key, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

const labels = unpack(data.labels);
const known = data.classes.length > 0;
const className = (k) => (k < 0 ? "unlabelled" : data.classes[k]);
const fileName = (n) => data.files[n] || "";
// As people read them: a Mac writes é as two characters, Linux as one.
const fold = (text) => text.normalize("NFC").toLowerCase();
// Isolated, so that right-to-left names leave the text around them in order.
const name = (k) => el("bdi", {}, className(k));
const caption = unpack(data.caption);
// What the codes are of, in words.
const item = data.texts.length ? "text" : "image";
const items = `${item}s`;
// A thumbnail's number is its image's, or past all of these its partner's.
const imageOf = (n) => n % data.images;
const count = (n) => n.toLocaleString("en");
const percent = (x) => (Number.isNaN(x) ? "–" : `${(100 * x).toFixed(x < 0.0995 ? 1 : 0)} %`);
const fixed = (x, digits) => (Number.isNaN(x) ? "–"
  : x.toFixed(digits).replace(/^-(0\.?0*)$/, "$1"));

// ---- data of one method, unpacked when it is first looked at

const sides = data.sides.map(() => null);

function load(index) {
  if (sides[index]) return sides[index];
  const { label, dimensions, arrays, grid, seen } = data.sides[index];
  const side = { label, dimensions, grid, seen };
  for (const key of Object.keys(arrays)) side[key] = unpack(arrays[key]);
  side.purity = new Float32Array(dimensions);
  side.majority = new Int32Array(dimensions);
  for (let d = 0; d < dimensions; d++) {
    const votes = new Map();
    let total = 0;
    for (const n of row(side.top, d)) {
      if (n < 0 || labels[n] < 0) continue;
      votes.set(labels[n], (votes.get(labels[n]) || 0) + 1);
      total++;
    }
    const most = Math.max(...votes.values());
    const winners = [...votes.keys()].filter((k) => votes.get(k) === most);
    side.majority[d] = total ? Math.min(...winners) : -1;
    side.purity[d] = total ? most / total : NaN;
  }
  return (sides[index] = side);
}

const row = (array, i) => array.subarray(i * array.wide, (i + 1) * array.wide);

function code(side, n) {
  const dims = row(side.kept, n);
  const values = row(side.kept_values, n);
  return [...dims].map((d, i) => [d, values[i] / SCALE]).filter(([d]) => d >= 0);
}

// The texts of a dimension, the most active first, with their values.
function texts(side, kind, d) {
  const at = side[`top_${kind}`];
  if (!at) return [];
  const values = row(side[`top_${kind}_values`], d);
  return [...row(at, d)].map((i, k) => [i, data[kind][i], values[k] / SCALE])
    .filter(([i]) => i >= 0);
}

// ---- thumbnails

const urls = [];
const { width, height, tile, columns, rows, mime } = data.sprite;

function sheet(index) {
  if (!urls[index]) {
    const blob = new Blob([bytes($(`sheet${index}`).textContent)], { type: mime });
    urls[index] = `url(${URL.createObjectURL(blob)})`;
  }
  return urls[index];
}

function thumb(n, size) {
  const scale = size / Math.max(width, height);
  const place = n % (columns * rows);
  const x = (place % columns) * tile[0] * scale;
  const y = Math.floor(place / columns) * tile[1] * scale;
  const i = imageOf(n);
  const label = (n === i ? `${item} ${i}` : `partner of ${item} ${i}`)
    + (known ? `, ${className(labels[i])}` : "")
    + (data.files.length ? `\n${fileName(i)}` : "")
    + (caption.length ? `: ${data.captions[caption[i]]}` : "");
  if (data.texts.length) {
    return el("button", { type: "button", class: "plain", title: label, "data-image": i },
      el("bdi", {}, data.texts[i]));
  }
  const node = el("button", { type: "button", class: "thumb", title: label,
    "aria-label": label, "data-image": i });
  if (scale > 1.5) node.classList.add("sharp");
  node.style.setProperty("--w", `${width * scale}px`);
  node.style.setProperty("--h", `${height * scale}px`);
  node.style.backgroundImage = sheet(Math.floor(n / (columns * rows)));
  node.style.backgroundSize =
    `${columns * tile[0] * scale}px ${rows * tile[1] * scale}px`;
  node.style.backgroundPosition = `${-x}px ${-y}px`;
  return node;
}

const strip = (images, size) =>
  el("div", { class: "strip" }, ...[...images].filter((n) => n >= 0).map((n) => thumb(n, size)));

function cell(n, size, text, majority) {
  const label = labels[imageOf(n)];
  const frame = majority === undefined || label < 0 ? ""
    : label === majority ? " agrees" : " differs";
  // Without classes the file's own name says most.
  const file = fileName(imageOf(n)).split("/").pop();
  const below = known ? el("span", { class: "caption" }, name(label))
    : file ? el("span", { class: "caption" }, el("bdi", {}, file)) : null;
  return el("div", { class: `cell${frame}` }, thumb(n, size), below,
    text ? el("span", { class: "soft" }, text) : null);
}

// ---- where we are

const state = { side: data.sides.length - 1, view: "", item: 0, tab: "dimension",
  sort: "expected", down: true, shown: PAGE, order: [] };

function read() {
  const [side, view, item] = location.hash.slice(1).split("/");
  const valid = { dimension: (s) => data.sides[s].dimensions, image: () => data.images };
  const s = Number(side);
  if (side === "" || !(s in data.sides) || !(view in valid)) return false;
  const i = Number(item);
  if (!Number.isInteger(i) || i < 0 || i >= valid[view](s)) return false;
  Object.assign(state, { side: s, view, item: i });
  return true;
}

function go(view, item, replace) {
  const hash = `#${state.side}/${view}/${item}`;
  if (hash !== location.hash) {
    // Whole, as a bare fragment would name the page around a frame. Where the browser
    // keeps no address, the page works without.
    const address = location.href.split("#")[0] + hash;
    try {
      history[replace ? "replaceState" : "pushState"](null, "", address);
    } catch { /* so be it */ }
  }
  Object.assign(state, { view, item });
  show();
}

function flip() {
  if (data.sides.length < 2) return;
  // Dimensions of two methods are not the same thing: the place in the list is kept.
  const rank = Math.max(0, state.order.indexOf(state.item));
  const listed = state.tab === "dimension";
  state.side = (state.side + 1) % data.sides.length;
  sort();
  let item = state.item;
  if (state.view === "dimension") {
    const order = listed ? state.order : dimensions();
    item = order.length ? order[Math.min(rank, order.length - 1)] : 0;
  }
  if (state.view) go(state.view, item, true);
  list();
}

function step(by) {
  if (!state.view) return;
  const size = state.view === "image" ? data.images : load(state.side).dimensions;
  const order = state.tab === state.view ? state.order : null;
  const at = order ? order.indexOf(state.item) : state.item;
  let item = state.item + by;
  if (order && at >= 0) item = at + by in order ? order[at + by] : state.item;
  if (item >= 0 && item < size) go(state.view, item, true);
}

// ---- the list

// As many are shown of a dimension.
const best = Math.max(0, ...data.sides.map((side) => side.arrays.top.width));
const COLUMNS = [
  { key: "number", title: "dim", sort: (s, d) => d, text: (s, d) => String(d),
    about: "number of the dimension" },
  { key: "images", title: `top ${items}` },
  { key: "top", title: "top class", name: true, labelled: true,
    sort: (s, d) => className(s.majority[d]),
    about: `most frequent class of the top ${items}` },
  { key: "words", title: "words", name: true, computed: "top_words",
    sort: (s, d) => texts(s, "words", d).map(([, word]) => word).join(" "),
    text: (s, d) => texts(s, "words", d).slice(0, 2).map(([, word]) => word).join(", ") || "–",
    about: "words that belong to it most: by the text tower, which gets each alone, or names of "
      + "its dimensions" },
  { key: "purity", title: `top ${best}`, labelled: true,
    sort: (s, d) => s.purity[d], text: (s, d) => percent(s.purity[d]),
    about: `that class's share of the ${best} ${items} that activate the dimension most, or of `
      + "all that do, if fewer; not the purity of launch.feature_stats, which is of a share of "
      + `all ${items}` },
  { key: "expected", title: "EA", sort: (s, d) => s.expected[d],
    text: (s, d) => fixed(s.expected[d], 3),
    about: `expected activation: mean of f over all ${items}, codes being of length 1` },
  { key: "active", title: "active", sort: (s, d) => s.active[d],
    text: (s, d) => percent(s.active[d] / data.images),
    about: `activity: share of the ${items} with |f| > ${data.threshold}` },
  { key: "consistency", title: "consist.", labelled: true, wide: true,
    sort: (s, d) => s.consistency[d], text: (s, d) => percent(s.consistency[d]),
    about: `class consistency: share of the most frequent class among the active ${items}` },
  { key: "entropy", title: "entropy", labelled: true, wide: true,
    sort: (s, d) => s.entropy[d], text: (s, d) => fixed(s.entropy[d], 2),
    about: `of the classes of the active ${items}, in nats; 0 = one class` },
  { key: "sepin", title: "SEPIN", wide: true, computed: "sepin",
    sort: (s, d) => s.sepin[d], text: (s, d) => fixed(s.sepin[d], 4),
    about: "information that this dimension alone carries, in nats" },
];
const shownColumns = () => COLUMNS.filter((c) =>
  (!c.labelled || known) && (!c.computed || c.computed in load(state.side)));

function dimensions() {
  const side = load(state.side);
  const text = fold($("filter").value.trim());
  const least = Number($("minimum").value) || 0;
  const found = [];
  for (let d = 0; d < side.dimensions; d++) {
    const top = side.majority[d];
    const named = known && top >= 0 && fold(className(top)).includes(text);
    const said = texts(side, "words", d).some(([, word]) => fold(word).includes(text));
    if (side.active[d] >= least && (!text || named || said || String(d) === text)) found.push(d);
  }
  const column = COLUMNS.find((c) => c.key === state.sort);
  const value = new Map(found.map((d) => [d, column.sort(side, d)]));
  const sign = state.down ? -1 : 1;
  return found.sort((a, b) => {
    const [x, y] = [value.get(a), value.get(b)];
    if (typeof x === "string") return sign * x.localeCompare(y) || a - b;
    // Undefined ones last, whichever the direction.
    return Number.isNaN(x) - Number.isNaN(y) || sign * (x - y) || a - b;
  });
}

function images() {
  const text = fold($("filter").value.trim());
  const found = [];
  for (let n = 0; n < data.images; n++) {
    const said = [caption.length ? data.captions[caption[n]] : "", data.texts[n] || "",
      fileName(n)].some((words) => fold(words).includes(text));
    const named = fold(className(labels[n])).includes(text);
    if (!text || String(n) === text || named || said) found.push(n);
  }
  return found;
}

function sort() {
  state.order = state.tab === "dimension" ? dimensions() : images();
}

function list() {
  sort();
  const kind = state.tab;
  const total = kind === "image" ? data.images : load(state.side).dimensions;
  const kinds = { dimension: "Dimensions", image: data.texts.length ? "Texts" : "Images" };
  $("tabs").replaceChildren(...Object.entries(kinds).map(([key, title]) =>
    el("button", { type: "button", "aria-pressed": key === kind, onclick: () => tab(key) }, title)));
  $("sides").replaceChildren(...data.sides.map((side, i) =>
    el("button", { type: "button", dir: "auto", "aria-pressed": i === state.side,
      onclick: () => { if (i !== state.side) flip(); } }, side.label)));
  $("sides").hidden = data.sides.length < 2;
  $("least").hidden = kind !== "dimension";
  const worded = kind === "image" ? caption.length + data.texts.length : load(state.side).top_words;
  const filed = kind === "image" && data.files.length;
  $("filter").placeholder = [known && "class", worded && "word", filed && "file", "number"]
    .filter(Boolean).join(" or ");
  $("filter").setAttribute("aria-label", `filter by ${$("filter").placeholder}`);
  $("count").textContent = `${count(state.order.length)} of ${count(total)} `
    + `${kind === "image" ? items : "dimensions"}` + (data.note ? ` · ${data.note}` : "");
  const page = state.order.slice(0, state.shown);
  $("entries").replaceChildren(kind === "dimension" ? table(page)
    : el("div", { class: "grid" }, ...page.map((n) => cell(n, 48))));
  $("more").hidden = state.order.length <= state.shown;
  mark();
}

function tab(kind) {
  Object.assign(state, { tab: kind, shown: PAGE });
  document.body.dataset.view = "list";
  $("filter").value = "";
  list();
}

function table(page) {
  const side = load(state.side);
  const shown = shownColumns();
  const head = shown.map((c) => {
    const sorted = c.key === state.sort;
    const order = state.down ? "descending" : "ascending";
    return el("th", { scope: "col", class: classes(c), "aria-sort": sorted && order },
      c.sort ? el("button", { type: "button", title: c.about, "data-sort": c.key,
        onclick: () => sortBy(c.key) }, c.title) : c.title);
  });
  const body = page.map((d) => el("tr", { "data-dimension": d }, ...shown.map((c) => {
    if (c.key === "number") return el("td", {}, link(d, String(d)));
    if (c.key === "images") return el("td", {}, strip(row(side.top, d).slice(0, data.texts.length ? 2 : 5), 24));
    const top = side.majority[d];
    if (c.key === "words") return el("td", { class: classes(c), title: c.text(side, d) },
      el("bdi", {}, c.text(side, d)));
    if (c.name) return el("td", { class: classes(c), title: className(top) },
      top < 0 ? "–" : name(top));
    return el("td", { class: classes(c) }, c.text(side, d));
  })));
  return el("table", {}, el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...body));
}

const classes = (c) =>
  [c.name && "name", c.key === "images" && "name", c.wide && "wide"].filter(Boolean).join(" ");

function sortBy(key) {
  const same = state.sort === key;
  state.down = same ? !state.down : !["number", "top", "words", "entropy"].includes(key);
  state.sort = key;
  list();
  document.querySelector(`[data-sort=${key}]`).focus();
}

const link = (d, text) =>
  el("button", { type: "button", class: "link", "data-dimension": d }, text);

function mark() {
  for (const tr of document.querySelectorAll("tr.open")) tr.classList.remove("open");
  if (state.view !== "dimension") return;
  const open = document.querySelector(`#entries tr[data-dimension="${state.item}"]`);
  if (open) open.classList.add("open");
}

// ---- one dimension, one image

function heading(...title) {
  const move = (by, sign, label) => el("button", { type: "button", class: "plain",
    "aria-label": label, title: label, onclick: () => step(by) }, sign);
  return el("div", { class: "bar" },
    el("button", { type: "button", class: "plain", id: "back", onclick: back }, "‹ list"),
    el("h2", {}, ...title),
    el("span", { class: "pair" }, move(-1, "←", "previous (k)"), " ", move(1, "→", "next (j)")));
}

function back() {
  document.body.dataset.view = "list";
  $("filter").focus({ preventScroll: true });
}

function line(label, share, text, negative) {
  const fill = el("div", { class: negative ? "fill negative" : "fill" });
  fill.style.width = `${100 * Math.min(1, Math.abs(share))}%`;
  return el("div", { class: "line" }, el("div", {}, label),
    el("div", { class: "track", "aria-hidden": "true" }, fill), el("div", {}, text));
}

function dimension(d) {
  const side = load(state.side);
  const active = side.active[d];
  const out = [heading(el("bdi", {}, side.label), ` · dimension ${d}`)];
  if (!active) {
    return [...out, el("p", {}, `Dead: no ${item} activates it.`), ...beside(side, d)];
  }
  const top = [...row(side.top, d)].filter((n) => n >= 0);
  const values = row(side.top_values, d);
  const majority = known ? side.majority[d] : undefined;
  const labelled = top.filter((n) => labels[n] >= 0).length;
  const agree = top.filter((n) => labels[n] === majority).length;
  const facts = el("p", {}, `Active on ${percent(active / data.images)} of the ${items} `
    + `(${count(active)} of ${count(data.images)}); mean ${fixed(side.expected[d], 3)}`
    + (side.sepin ? `; SEPIN ${fixed(side.sepin[d], 4)} nats` : "") + ".");
  if (known && labelled) {
    facts.append(` Of the ${labelled} ${items} that activate it most, `,
      el("b", {}, `${agree} ${agree === 1 ? "is" : "are"} `, name(majority)), ".");
  }
  out.push(facts, el("h3", {}, `${data.texts.length ? "Texts" : "Images"} that activate it most`));
  out.push(top.length ? el("div", { class: "grid" }, ...top.map((n, i) =>
    cell(n, 64, (values[i] / SCALE).toFixed(2), majority)))
    : el("p", {}, "None: all its values are negative."), ...beside(side, d, majority));
  if (known) {
    const counts = row(side.class_counts, d);
    const total = counts[0] / side.consistency[d];
    const bars = [...row(side.classes, d)].map((k, i) => k < 0 ? null
      : line(name(k), counts[i] / counts[0],
        `${count(counts[i])} · ${percent(counts[i] / total)}`));
    out.push(el("h3", {}, `Classes of all ${items} that activate it`),
      el("p", { class: "soft" }, `Consistency ${percent(side.consistency[d])}, entropy `
        + `${fixed(side.entropy[d], 2)} nats (${fixed(Math.log(data.classes.length), 2)} `
        + "if all classes were alike)."), ...bars.filter(Boolean));
    const rest = total - counts.reduce((a, b) => a + b, 0);
    if (rest > 0.5) out.push(line("others", rest / counts[0], count(Math.round(rest))));
  }
  const bins = row(side.histogram, d);
  const most = Math.max(...bins);
  const bars = [...bins].map((n) => {
    const bar = el("div", { title: `${count(n)} ${items}` });
    bar.style.height = n ? `max(1px, ${(100 * n) / most}%)` : "0";
    return bar;
  });
  const silent = data.images - active;
  const range = [side.low[d].toFixed(2), side.high[d].toFixed(2)];
  out.push(el("h3", {}, "Activations"),
    el("div", { class: "histogram", role: "img", "aria-label":
      `histogram of ${count(active)} values from ${range[0]} to ${range[1]}` }, ...bars),
    el("div", { class: "axis" }, ...range.map((x) => el("span", {}, x))),
    el("p", { class: "soft" }, `The ${count(active)} active values; highest bar `
      + `${count(most)}. ${count(silent)} ${items} do not activate it.`));
  return out;
}

// What stands beside the images, and activates the dimension by the other tower.
function beside(side, d, majority) {
  const out = [];
  if (side.top_words) {
    const chips = texts(side, "words", d).map(([, word, value]) =>
      el("span", { class: "plain" }, el("bdi", {}, word), ` ${value.toFixed(2)}`));
    out.push(el("h3", {}, "Words that activate it most"), chips.length
      ? el("div", { class: "chips" }, ...chips) : el("p", {}, "None."));
  }
  if (side.top_captions) {
    const found = texts(side, "captions", d);
    out.push(el("h3", {}, "Captions that activate it most"), found.length
      ? el("ol", {}, ...found.map(([i, text, value]) => el("li", {}, el("button",
        { type: "button", class: "link", "data-image": caption.indexOf(i) },
        el("bdi", {}, text)), ` ${value.toFixed(2)}`)))
      : el("p", {}, "None."));
  }
  if (side.top_partners) {
    const values = row(side.top_partners_values, d);
    const cells = [...row(side.top_partners, d)].map((n, i) => n < 0 ? null
      : cell(data.images + n, 64, (values[i] / SCALE).toFixed(2), majority)).filter(Boolean);
    out.push(el("h3", {}, "Partners that activate it most"), cells.length
      ? el("div", { class: "grid" }, ...cells) : el("p", {}, "None."));
  }
  return out;
}

// What each head of the last layer looks at, in orange upon the image.
function attention(side, n) {
  if (!side.attention) return [];
  const [down, across] = side.grid;
  const maps = row(side.attention, n);
  const size = 96;
  const scale = size / Math.max(width, height);
  const square = side.seen * Math.min(width, height) * scale;
  const heads = [];
  for (let start = 0; start < maps.length; start += down * across) {
    const canvas = el("canvas", { width: across, height: down, "aria-hidden": "true" });
    const context = canvas.getContext("2d");
    const shade = context.createImageData(across, down);
    for (let i = 0; i < down * across; i++) {
      shade.data.set([255, 110, 0, 0.8 * maps[start + i]], 4 * i);
    }
    context.putImageData(shade, 0, 0);
    canvas.style.width = canvas.style.height = `${square}px`;
    canvas.style.left = `${(width * scale - square) / 2}px`;
    canvas.style.top = `${(height * scale - square) / 2}px`;
    const picture = thumb(n, size);
    picture.classList.add("seen");
    picture.append(canvas);
    heads.push(picture);
  }
  const what = heads.length > 1 ? `its ${heads.length} heads, each for itself` : "all heads together";
  return [el("h3", {}, "What the network looks at"),
    el("p", { class: "soft" }, `Attention of the last layer, ${what}: the stronger the orange, the more.`),
    el("div", { class: "grid" }, ...heads)];
}

function image(n) {
  const side = load(state.side);
  const own = code(side, n);
  const largest = Math.max(0, ...own.map(([, v]) => Math.abs(v)));
  const squares = own.reduce((sum, [, v]) => sum + v * v, 0);
  const out = [
    heading(el("bdi", {}, side.label), ` · ${item} ${n}`),
    el("div", { class: "top" },
      strip(data.partners ? [n, data.images + n] : [n], 128), el("div", {},
        caption.length ? el("p", {}, "Caption: ",
          el("b", {}, el("bdi", {}, data.captions[caption[n]]))) : null,
        known ? el("p", {}, "Class: ", el("b", {}, name(labels[n]))) : null,
        data.files.length ? el("p", {}, "File: ", el("bdi", {}, fileName(n))) : null,
        el("p", {}, `${count(side.l0[n])} of ${count(side.dimensions)} dimensions are active.`),
        el("p", { class: "soft" }, `${percent(squares)} of the code's squared length lies `
          + `in the ${own.length} below.`))),
    ...attention(side, n),
    el("h3", {}, "Why this code"),
  ];
  if (!own.length) out.push(el("p", {}, "The code is empty: no dimension is active."));
  else out.push(el("p", { class: "soft" }, `The largest values, and the ${items} that `
    + "activate each of these dimensions most."
    + (own.some(([, v]) => v < 0) ? ` Orange: a negative value; the ${item} is far from `
      + "those shown." : "")));
  for (const [d, v] of own) {
    const label = el("span", { class: "two" }, link(d, `dim ${d}`));
    if (side.majority[d] >= 0) label.append(" ", name(side.majority[d]));
    out.push(el("div", { class: "why" },
      line(label, v / largest, v.toFixed(2), v < 0), strip(row(side.top, d).slice(0, 10), 32)));
  }
  out.push(el("h3", {}, `Nearest ${items}`));
  const near = row(side.near, n);
  const cosines = row(side.near_values, n);
  const mine = new Map(own);
  [...near].forEach((m, i) => {
    if (m < 0) return;
    const shared = code(side, m).filter(([d]) => mine.has(d))
      .map(([d, v]) => [d, v * mine.get(d)]).filter(([, part]) => part >= 0.005)
      .sort((a, b) => b[1] - a[1]).slice(0, 6);
    out.push(el("div", { class: "near" }, cell(m, 56), el("div", {},
      el("div", {}, `cosine ${(cosines[i] / SCALE).toFixed(2)}`,
        shared.length ? "; shared:" : "; none of the largest values is shared"),
      el("div", { class: "chips" }, ...shared.map(([d, part]) => el("button", {
        type: "button", class: "plain", "data-dimension": d,
        title: `adds ${part.toFixed(2)} to the cosine` }, `dim ${d} +${part.toFixed(2)}`))))));
  });
  if (near.every((m) => m < 0)) out.push(el("p", {}, "None: no other code points its way."));
  return out;
}

function show() {
  $("detail").replaceChildren(...(state.view === "image" ? image : dimension)(state.item));
  $("detail").scrollTop = 0;
  document.body.dataset.view = "detail";
  if (matchMedia("(max-width: 56rem)").matches) scrollTo(0, 0);
  mark();
}

// ---- events

// The page as it opens: the list, and beside it, where there is room, what is first.
function start() {
  const [first] = dimensions();
  document.body.dataset.view = "list";
  if (first === undefined) return;
  Object.assign(state, { view: "dimension", item: first });
  $("detail").replaceChildren(...dimension(first));
  mark();
}

function arrive() {
  const before = state.side;
  if (!read()) return void start();
  if (before !== state.side) list();
  show();
}

addEventListener("hashchange", arrive);
document.addEventListener("click", (event) => {
  const target = event.target.closest("[data-image], [data-dimension]");
  if (!target) return;
  const { image: n, dimension: d } = target.dataset;
  if (n !== undefined) go("image", Number(n));
  else go("dimension", Number(d));
});
for (const id of ["filter", "minimum"]) {
  $(id).addEventListener("input", () => {
    state.shown = PAGE;
    list();
  });
}
$("more").addEventListener("click", () => {
  state.shown += 2 * PAGE;
  list();
});
const KEYS = { j: () => step(1), k: () => step(-1), c: flip, Escape: back,
  d: () => tab("dimension"), i: () => tab("image"), "/": () => $("filter").focus() };
document.addEventListener("keydown", (event) => {
  const typing = event.target.matches("input") && event.key !== "Escape";
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.matches("input")) return void event.target.blur();
  if (!(event.key in KEYS)) return;
  event.preventDefault();
  KEYS[event.key]();
});
const fit = () => document.documentElement.style.setProperty("--header",
  `${document.querySelector("header").offsetHeight}px`);
addEventListener("resize", fit);
$("help").addEventListener("toggle", fit);

$("definitions").textContent = "Columns: " + COLUMNS.filter((c) => c.about && (!c.computed
  || data.sides.some((side) => c.computed in side.arrays)))
  .map((c) => `${c.title}: ${c.about}`).join("; ") + ".";
if (!known) state.sort = "expected";
if (data.texts.length) {
  document.body.classList.add("texts");
  for (const node of document.querySelectorAll("[data-item]")) {
    node.textContent = node.textContent.replace("image", "text").replace("Image", "Text");
  }
}
const told = read();
list();
if (told) show();
else start();
fit();
})();
