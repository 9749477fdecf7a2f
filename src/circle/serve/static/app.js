// The page: classes to teach on the left, something to ask about on the right. Everything shown comes from the server.

import { api, sendable } from "/api.js";
import { Camera } from "/camera.js";
import { acceptDrops, attempt, farewell, find, newGroup, say, short, showAnswers, showCurve, thumbnail } from "/parts.js";

const camera = new Camera(find("video"));
const cards = new Map(); // label -> element
let asked = null; // the image asked about last, which is the one that is shown
let asking = false;
let recording = null; // the card being recorded for
let uploads = 0;

// -- what the server knows -------------------------------------------------------------------------------------

let refreshing = null;
let lost = false;
let changes = 0; // grows when a change of the classes begins and when it ends: news from before it are old
function refresh() {
  const known = changes;
  refreshing ??= api.state().then((state) => {
    if (lost) say("The server is back.");
    lost = false;
    if (known === changes) show(state);
  }).catch((error) => {
    lost = !error.status;
    say(error.message, true);
  }).finally(() => { refreshing = null; });
  return refreshing;
}

// Make a change, and show what the server knows after it.
async function change(action) {
  changes += 1;
  const answer = await attempt(action);
  changes += 1;
  await refreshing; // asked for before the change was made
  await refresh();
  return answer;
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
  undo.textContent = state.undo ? `Undo ${state.undo.images} of ${short(state.undo.labels)}` : "Undo";
  undo.title = state.undo ? state.undo.labels.join(", ") : "";
  if (state.warning) say(state.warning, true);
  showClasses(state.classes);
  document.body.dataset.version = state.version;
  document.body.dataset.predicting = state.predicting;
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
  record.addEventListener("keydown", (event) => {
    if (event.key !== " " && event.key !== "Enter") return;
    event.preventDefault(); // a held key neither scrolls nor clicks
    if (!event.repeat) startRecording(card, record);
  });
  for (const end of ["pointerup", "pointercancel", "keyup", "blur"]) record.addEventListener(end, () => { recording = null; });
  return card;
}

async function teachOne(card, file, group) {
  const blob = await sendable(file);
  const answer = await api.learn(card.dataset.label, blob, find("hold").checked, group);
  if (answer.outcome !== "known") thumbnail(card, blob, group, answer.outcome === "held");
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
  if (recording === card) return;
  const group = newGroup();
  recording = card;
  button.classList.add("on");
  while (recording === card && camera.on) {
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
  const answer = await change(async () => {
    const renamed = await api.rename(label, to);
    rebrand(card, label, renamed.label);
    return renamed;
  });
  if (answer) say(`${label} is now called ${answer.label}; nothing was learned anew.`);
  else field.value = label;
}

// The card of a renamed class goes on under the new name.
function rebrand(card, label, to) {
  const other = cards.get(to);
  if (cards.get(label) === card) cards.delete(label);
  if (other && other !== card) {
    // News of the new name came before the answer, and made a card already: that one stays.
    other.querySelector(".thumbs").append(...card.querySelector(".thumbs").children);
    card.remove();
  } else {
    cards.set(to, card);
    card.dataset.label = to;
    card.querySelector(".name").value = to;
  }
  for (const name of find("answers").querySelectorAll("span:first-child")) {
    if (name.textContent === label) name.textContent = to;
  }
}

async function forget(label) {
  if (!confirm(`Forget ${label}? This cannot be undone.`)) return;
  const answer = await change(() => api.forget(label));
  if (answer) say(farewell(label, answer));
  askAgain();
}

async function undo() {
  const answer = await change(api.undo);
  if (answer) {
    for (const picture of document.querySelectorAll(".thumbs img")) {
      if (answer.group && picture.dataset.group === answer.group) picture.remove();
    }
    say(`Taken back: ${answer.images} of ${short(answer.labels)}.`);
  }
  askAgain();
}

// -- asking ----------------------------------------------------------------------------------------------------

// Forget the image asked about: nothing is shown, so nothing can be corrected.
function clearAsked() {
  asked = null;
  showAnswers([]);
  find("shown").hidden = true;
  find("correct").hidden = true;
  find("ask-hint").hidden = camera.on;
}

function showStill(blob) {
  const shown = find("shown");
  const address = URL.createObjectURL(blob);
  shown.addEventListener("load", () => URL.revokeObjectURL(address), { once: true });
  shown.src = address;
  shown.hidden = false;
  find("ask-hint").hidden = true;
}

async function askAbout(blob, patience) {
  asked = blob;
  const answer = await api.predict(blob, patience);
  if (asked !== blob) return; // another one was asked about meanwhile
  showAnswers(answer.predictions);
  find("correct").hidden = find("choices").children.length === 0;
}

// Ask about an image that stays in view. One that is refused leaves it; where nothing was learned yet it can be taught.
async function askStill(blob) {
  try {
    await askAbout(blob);
  } catch (error) {
    if (asked !== blob) return;
    if ([400, 413, 415, 422].includes(error.status)) clearAsked();
    else showAnswers([]);
    find("correct").hidden = !asked || find("choices").children.length === 0;
    throw error;
  }
}

function askFile(file) {
  stopCamera();
  clearAsked();
  return attempt(async () => {
    const blob = await sendable(file);
    showStill(blob);
    await askStill(blob);
  });
}

async function askAgain() {
  if (!asked || camera.on) return;
  await askStill(asked).catch(() => {}); // whoever changed something was told what came of it
}

async function correct(label) {
  const card = cards.get(label);
  const image = asked;
  const group = newGroup();
  const answer = await attempt(() => api.learn(label, image, false, group));
  if (!answer) return;
  if (answer.outcome === "learned") thumbnail(card, image, group, false);
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
    if (blob && !asking && camera.on) {
      asking = true;
      try {
        await askAbout(blob, 0); // the next frame comes anyway
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
  clearAsked();
  find("video").hidden = false;
  find("camera").classList.add("on");
  await refresh();
  watch();
}

function stopCamera() {
  // The last frame that was asked about stays in view: the answers, and a correction, are about it.
  if (camera.on && asked) showStill(asked);
  camera.stop();
  recording = null;
  find("video").hidden = true;
  find("camera").classList.remove("on");
  find("ask-hint").hidden = !find("shown").hidden;
  for (const card of cards.values()) card.querySelector(".record").hidden = true;
}

// -- files -----------------------------------------------------------------------------------------------------

let modelAction = null;
function chooseModel(action) {
  modelAction = action;
  find("model-file").click();
}

async function takeModel(file) {
  if (modelAction === "load" && !confirm("Go on with another model? The present one is replaced: download it first to keep it.")) return;
  const answer = await change(() => api[modelAction](file));
  if (!answer) return;
  if (modelAction === "load") for (const thumbs of document.querySelectorAll(".thumbs")) thumbs.replaceChildren();
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
  if (await change(() => api.makeClass(field.value.trim()))) field.value = "";
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
