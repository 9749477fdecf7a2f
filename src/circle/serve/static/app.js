// The page: classes to teach on the left, something to ask about on the right. Everything shown comes from the server.

import { api, sendable } from "/api.js";
import { Camera } from "/camera.js";

const find = (id) => document.getElementById(id);
const camera = new Camera(find("video"));
const cards = new Map(); // label -> element
const thumbnails = 24;
let asked = null; // the image asked about last
let asking = false;
let recording = null; // the label being recorded
let uploads = 0;

// -- messages --------------------------------------------------------------------------------------------------

let hideLater = 0;
function say(text, bad = false) {
  const message = find("message");
  message.textContent = text;
  message.classList.toggle("bad", bad);
  message.hidden = false;
  clearTimeout(hideLater);
  hideLater = setTimeout(() => { message.hidden = true; }, bad ? 10000 : 4000);
}

async function attempt(action) {
  try {
    return await action();
  } catch (error) {
    say(error.message, true);
    return null;
  }
}

const newGroup = () => Array.from(crypto.getRandomValues(new Uint8Array(8)), (byte) => byte.toString(16).padStart(2, "0")).join("");

// -- what the server knows -------------------------------------------------------------------------------------

let refreshing = null;
function refresh() {
  refreshing ??= api.state().then(show).catch((error) => say(error.message, true)).finally(() => { refreshing = null; });
  return refreshing;
}

function show(state) {
  find("model-name").textContent = state.model;
  document.title = `${state.model} – CIRCLE`;
  find("samples").textContent = state.samples.toLocaleString("en");
  const { right, tested, accuracy } = state.held_back;
  find("accuracy").textContent = accuracy === null ? "–" : `${right} (${Math.round(100 * accuracy)} %)`;
  find("tested").textContent = tested;
  showCurve(state.curve);
  const undo = find("undo");
  undo.disabled = state.undo === null;
  undo.textContent = state.undo ? `Undo ${state.undo.images} of ${state.undo.labels.join(", ")}` : "Undo";
  if (state.warning) say(state.warning, true);
  showClasses(state.classes);
  document.body.dataset.version = state.version;
  document.body.dataset.predicting = state.predicting;
}

function showCurve(curve) {
  const last = Math.max(1, curve.length - 1);
  const points = curve.map(([, accuracy], index) => `${(160 * index) / last},${34 - 32 * accuracy}`);
  find("curve").querySelector("polyline").setAttribute("points", points.join(" "));
}

function showClasses(classes) {
  const labels = new Set(classes.map((each) => each.label));
  for (const [label, card] of cards) {
    if (!labels.has(label)) {
      card.remove();
      cards.delete(label);
    }
  }
  for (const each of classes) {
    const card = cards.get(each.label) ?? addCard(each.label);
    const test = each.tested ? `, ${each.right} of ${each.tested} held back right` : "";
    card.querySelector(".counts").textContent = `${each.learned} learned${test}`;
    card.querySelector(".record").hidden = !camera.on;
  }
  find("empty").hidden = classes.length > 0;
  const choices = find("choices");
  const shown = Array.from(choices.children, (button) => button.textContent);
  const wanted = classes.map((each) => each.label);
  if (shown.join("\n") !== wanted.join("\n")) {
    choices.replaceChildren(...wanted.map((label) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = label;
      button.addEventListener("click", () => correct(label));
      return button;
    }));
  }
  find("correct").hidden = !(asked && wanted.length);
}

// -- teaching --------------------------------------------------------------------------------------------------

function addCard(label) {
  const card = find("class-card").content.firstElementChild.cloneNode(true);
  card.dataset.label = label;
  cards.set(label, card);
  find("classes").append(card);
  const name = card.querySelector(".name");
  name.value = label;
  name.addEventListener("change", () => rename(card, name));
  name.addEventListener("keydown", (event) => { if (event.key === "Enter") name.blur(); });
  card.querySelector(".forget").addEventListener("click", () => forget(card.dataset.label));
  const files = card.querySelector(".files");
  card.querySelector(".choose").addEventListener("click", () => files.click());
  files.addEventListener("change", () => {
    const chosen = Array.from(files.files);
    files.value = "";
    teach(card, chosen);
  });
  acceptDrops(card, (dropped) => teach(card, dropped));
  const record = card.querySelector(".record");
  record.addEventListener("pointerdown", (event) => {
    record.setPointerCapture(event.pointerId); // the card grows while it learns: the finger stays on the button
    startRecording(card, record);
  });
  for (const end of ["pointerup", "pointercancel"]) record.addEventListener(end, () => { recording = null; });
  return card;
}

function thumbnail(card, blob, held) {
  const thumbs = card.querySelector(".thumbs");
  const picture = document.createElement("img");
  picture.alt = held ? "held back" : "learned";
  picture.classList.toggle("held", held);
  picture.src = URL.createObjectURL(blob);
  picture.addEventListener("load", () => URL.revokeObjectURL(picture.src), { once: true });
  picture.addEventListener("error", () => picture.remove(), { once: true });
  thumbs.prepend(picture);
  while (thumbs.children.length > thumbnails) thumbs.lastChild.remove();
}

async function teachOne(card, file, group) {
  const blob = await sendable(file);
  const answer = await api.learn(card.dataset.label, blob, find("hold").checked, group);
  if (answer.outcome !== "known") thumbnail(card, blob, answer.outcome === "held");
  return answer.outcome;
}

async function teach(card, files) {
  const group = newGroup();
  const progress = card.querySelector(".progress");
  const counts = { learned: 0, held: 0, known: 0, refused: 0 };
  let reason = "";
  uploads += 1;
  progress.max = files.length;
  progress.value = 0;
  progress.hidden = false;
  for (const file of files) {
    try {
      counts[await teachOne(card, file, group)] += 1;
    } catch (error) {
      counts.refused += 1;
      reason = `${file.name}: ${error.message}`;
      if (!error.status || error.status === 507 || error.status === 401) break;
    }
    progress.value += 1;
    refresh();
  }
  progress.hidden = true;
  uploads -= 1;
  await refresh();
  const words = [`${counts.learned} learned`];
  if (counts.held) words.push(`${counts.held} held back`);
  if (counts.known) words.push(`${counts.known} known already`);
  if (counts.refused) words.push(`${counts.refused} refused (${reason})`);
  say(`${card.dataset.label}: ${words.join(", ")}`, counts.refused > 0);
}

async function startRecording(card, button) {
  const group = newGroup();
  recording = card.dataset.label;
  button.classList.add("on");
  while (recording === card.dataset.label && camera.on) {
    const blob = await camera.frame();
    if (blob) await attempt(() => teachOne(card, blob, group));
    refresh();
    await new Promise((done) => setTimeout(done, 150));
  }
  button.classList.remove("on");
}

async function rename(card, field) {
  const label = card.dataset.label;
  const to = field.value.trim();
  if (!to || to === label) {
    field.value = label;
    return;
  }
  const answer = await attempt(() => api.rename(label, to));
  if (answer === null) {
    field.value = label;
    return;
  }
  cards.delete(label);
  cards.set(answer.label, card);
  card.dataset.label = answer.label;
  field.value = answer.label;
  for (const name of find("answers").querySelectorAll("span:first-child")) {
    if (name.textContent === label) name.textContent = answer.label;
  }
  say(`${label} is now called ${answer.label}; nothing was learned anew.`);
  await refresh();
}

async function forget(label) {
  if (!confirm(`Forget ${label}? This cannot be undone.`)) return;
  const answer = await attempt(() => api.forget(label));
  await refresh();
  if (answer) say(answer.exact ? `${label} is gone without a trace.` : `${label} is gone; its anonymous scatter stays in what all classes share.`);
  askAgain();
}

async function undo() {
  const answer = await attempt(api.undo);
  await refresh();
  if (answer) say(`Taken back: ${answer.images} of ${answer.labels.join(", ")}.`);
  askAgain();
}

// -- asking ----------------------------------------------------------------------------------------------------

function showAnswers(predictions) {
  const list = find("answers");
  while (list.children.length > predictions.length) list.lastChild.remove();
  predictions.forEach(({ label, probability }, index) => {
    let row = list.children[index];
    if (!row) {
      row = document.createElement("li");
      const bar = document.createElement("span");
      bar.className = "bar";
      bar.append(document.createElement("i"));
      row.append(document.createElement("span"), bar, document.createElement("span"));
      list.append(row);
    }
    row.children[0].textContent = label;
    row.children[1].firstChild.style.width = `${100 * probability}%`;
    row.children[2].textContent = `${(100 * probability).toFixed(1)} %`;
  });
}

async function askAbout(blob) {
  asked = blob;
  const answer = await api.predict(blob);
  showAnswers(answer.predictions);
  find("correct").hidden = find("choices").children.length === 0;
}

function askFile(file) {
  stopCamera();
  return attempt(async () => {
    const blob = await sendable(file);
    const shown = find("shown");
    const address = URL.createObjectURL(blob);
    shown.addEventListener("load", () => URL.revokeObjectURL(address), { once: true });
    shown.src = address;
    shown.hidden = false;
    find("ask-hint").hidden = true;
    await askAbout(blob);
  });
}

async function askAgain() {
  if (!asked || camera.on) return;
  try {
    await askAbout(asked);
  } catch {
    showAnswers([]);
  }
}

async function correct(label) {
  const card = cards.get(label);
  const answer = await attempt(() => api.learn(label, asked, false, newGroup()));
  if (!answer) return;
  if (answer.outcome === "learned") thumbnail(card, asked, false);
  say(answer.outcome === "known" ? `It was taught as ${label} before.` : `Learned as ${label}.`);
  // Predictions follow as soon as the new heads are there.
  for (let tries = 0; tries < 40; tries += 1) {
    await refresh();
    if (Number(document.body.dataset.predicting) >= answer.version) break;
    await new Promise((done) => setTimeout(done, 100));
  }
  askAgain();
}

async function watch() {
  while (camera.on) {
    const blob = recording ? null : await camera.frame();
    if (blob && !asking) {
      asking = true;
      try {
        await askAbout(blob);
      } catch (error) {
        if (error.status !== 409 && error.status !== 503) say(error.message, true);
      }
      asking = false;
    }
    await new Promise((done) => setTimeout(done, 200));
  }
}

async function toggleCamera() {
  if (camera.on) {
    stopCamera();
    return;
  }
  if ((await attempt(() => camera.start().then(() => true))) === null) return;
  find("video").hidden = false;
  find("shown").hidden = true;
  find("ask-hint").hidden = true;
  find("camera").classList.add("on");
  await refresh();
  watch();
}

function stopCamera() {
  camera.stop();
  recording = null;
  find("video").hidden = true;
  find("camera").classList.remove("on");
  find("ask-hint").hidden = !find("shown").hidden;
  for (const card of cards.values()) card.querySelector(".record").hidden = true;
}

// -- files -----------------------------------------------------------------------------------------------------

function acceptDrops(element, take) {
  element.addEventListener("dragover", (event) => {
    event.preventDefault();
    element.classList.add("over");
  });
  element.addEventListener("dragleave", () => element.classList.remove("over"));
  element.addEventListener("drop", (event) => {
    event.preventDefault();
    element.classList.remove("over");
    const files = Array.from(event.dataTransfer.files);
    if (files.length) take(files);
  });
}

let modelAction = null;
function chooseModel(action) {
  modelAction = action;
  find("model-file").click();
}

async function takeModel(file) {
  if (modelAction === "load" && !confirm("Go on with another model? The present one is replaced: download it first to keep it.")) return;
  const answer = await attempt(() => api[modelAction](file));
  await refresh();
  if (!answer) return;
  const twice = answer.twice ? `; ${answer.twice} images were in both` : "";
  say(modelAction === "load" ? `Loaded ${file.name}.` : `Merged ${file.name}${twice}.`);
  askAgain();
}

async function download() {
  const blob = await attempt(api.download);
  if (!blob) return;
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = find("model-name").textContent;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

find("new-class").addEventListener("submit", async (event) => {
  event.preventDefault();
  const field = find("new-name");
  if (!field.value.trim()) return;
  if (await attempt(() => api.makeClass(field.value.trim()))) field.value = "";
  await refresh();
});
find("undo").addEventListener("click", undo);
find("download").addEventListener("click", download);
find("load").addEventListener("click", () => chooseModel("load"));
find("merge").addEventListener("click", () => chooseModel("merge"));
find("model-file").addEventListener("change", (event) => {
  const [file] = event.target.files;
  if (file) takeModel(file).finally(() => { event.target.value = ""; });
});
find("camera").addEventListener("click", toggleCamera);
find("choose-test").addEventListener("click", () => find("test-file").click());
find("test-file").addEventListener("change", (event) => {
  const [file] = event.target.files;
  if (file) askFile(file);
  event.target.value = "";
});
acceptDrops(find("ask"), ([file]) => askFile(file));
for (const kind of ["dragover", "drop"]) window.addEventListener(kind, (event) => event.preventDefault());

await refresh();
setInterval(() => { if (!document.hidden && !uploads) refresh(); }, 1000);
