// What the page is made of: messages, drops, thumbnails, bars, the curve.

export const find = (id) => document.getElementById(id);

let hideLater = 0;
export function say(text, bad = false) {
  const message = find("message");
  message.textContent = text;
  message.classList.toggle("bad", bad);
  message.hidden = false;
  clearTimeout(hideLater);
  hideLater = setTimeout(() => { message.hidden = true; }, bad ? 10000 : 4000);
}

// The result of an action, or nothing and a message that says why.
export async function attempt(action) {
  try {
    return await action();
  } catch (error) {
    say(error.message, true);
    return null;
  }
}

export const newGroup = () => Array.from(crypto.getRandomValues(new Uint8Array(8)), (byte) => byte.toString(16).padStart(2, "0")).join("");

// Labels for a button: each in 20 characters, three at most.
export function short(labels) {
  const cut = (label) => (Array.from(label).length > 20 ? `${Array.from(label).slice(0, 19).join("")}…` : label);
  const more = labels.length > 3 ? ` and ${labels.length - 3} more` : "";
  return labels.slice(0, 3).map(cut).join(", ") + more;
}

export function acceptDrops(element, take) {
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

const thumbnails = 24; // of a class

// Show an image on its card; it leaves again with its group.
export function thumbnail(card, blob, group, held) {
  const thumbs = card.querySelector(".thumbs");
  const picture = document.createElement("img");
  picture.alt = held ? "held back" : "learned";
  picture.dataset.group = group;
  picture.classList.toggle("held", held);
  picture.src = URL.createObjectURL(blob);
  picture.addEventListener("load", () => URL.revokeObjectURL(picture.src), { once: true });
  picture.addEventListener("error", () => picture.remove(), { once: true });
  thumbs.prepend(picture);
  while (thumbs.children.length > thumbnails) thumbs.lastChild.remove();
}

// The learning curve: accuracy on images held back, over the images learned.
export function showCurve(curve) {
  const last = Math.max(1, curve.length - 1);
  const points = curve.map(([, accuracy], index) => `${(160 * index) / last},${34 - 32 * accuracy}`);
  find("curve").querySelector("polyline").setAttribute("points", points.join(" "));
}

// The most probable classes, each with a bar.
export function showAnswers(predictions) {
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
    row.children[0].title = label; // it may not fit
    row.children[1].firstChild.style.width = `${100 * probability}%`;
    row.children[2].textContent = `${(100 * probability).toFixed(1)} %`;
  });
}

// What is left of a class that was forgotten.
export function farewell(label, { exact, erased }) {
  const scatter = exact ? "" : "; its anonymous scatter stays in what all classes share";
  const journal = erased ? "" : "; its last images leave the journal as soon as the disk allows";
  return `${label} is gone${scatter || journal ? scatter + journal : " without a trace"}.`;
}
