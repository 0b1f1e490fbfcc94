/* Keeps a list, an object's page or the dashboard up to date while it is open: the server says that
   something has changed, and the page is fetched again. It waits while something is selected or
   typed. Without script, or where the server cannot stream, the page stays as it was loaded. */
"use strict";

document.addEventListener("DOMContentLoaded", () => {
    const words = document.querySelector("meta[name=ojs-live]");
    const content = document.getElementById("content");
    if (!words || !content || !window.EventSource) {
        return;
    }
    if (document.querySelector("[data-ojs-json]")) {
        return; // a form: nothing may change while it is filled in
    }
    const PAUSE = 2000; // milliseconds between two fetches
    const list = document.querySelector("#result_list tbody");
    const page = document.querySelector("#content-main");
    const dashboard = document.getElementById("ojs-interval");
    const status = document.createElement("p");
    status.className = "ojs-live";
    status.hidden = true;
    content.prepend(status);

    let last = 0;
    let due = null;
    let isGone = false;

    function say(text, state) {
        status.hidden = false;
        status.dataset.state = state;
        const words_and_time = text.replace("{time}", new Date().toLocaleTimeString());
        if (status.textContent !== words_and_time) {
            status.textContent = words_and_time;
        }
    }

    /* What is shown stays as it was: the server has another page here, or none. */
    function end() {
        isGone = true;
        clearTimeout(due);
        source.close();
        say(words.dataset.gone, "lost");
    }

    /* Whether the reader is in the middle of something that a new page would undo. */
    function isBusy() {
        const selection = window.getSelection();
        if (selection && selection.type === "Range") {
            return true;
        }
        const active = document.activeElement;
        if (active && active.matches("input:not([type=checkbox]), textarea, select")) {
            return true;
        }
        for (const field of document.querySelectorAll("#content-main input, #content-main textarea, #content-main select")) {
            if (field.type === "checkbox" || field.type === "radio") {
                if (field.checked !== field.defaultChecked) {
                    return true;
                }
            } else if (field.tagName === "SELECT") {
                const chosen = [...field.options].find(option => option.defaultSelected) ?? field.options[0];
                if (chosen && !chosen.selected) {
                    return true;
                }
            } else if (field.type !== "hidden" && field.value !== field.defaultValue) {
                return true;
            }
        }
        return false;
    }

    function replaceRows(fresh) {
        const rows = [...list.rows];
        const others = [...fresh.rows];
        if (rows.length !== others.length) {
            location.reload(); // Django's script knows the boxes of the rows that were loaded
            return;
        }
        rows.forEach((row, place) => {
            const other = others[place];
            const box = row.querySelector("input.action-select");
            const otherBox = other.querySelector("input.action-select");
            [...row.cells].forEach((cell, column) => {
                const otherCell = other.cells[column];
                if (box && otherBox && cell.contains(box)) {
                    box.value = otherBox.value;
                    box.setAttribute("aria-label", otherBox.getAttribute("aria-label") ?? "");
                } else if (otherCell && cell.innerHTML !== otherCell.innerHTML) {
                    cell.replaceChildren(...otherCell.childNodes);
                }
            });
        });
    }

    function replacePage(fresh) {
        const open = new Set([...page.querySelectorAll("details[open][id]")].map(each => each.id));
        page.replaceChildren(...fresh.childNodes);
        for (const details of page.querySelectorAll("details[id]")) {
            details.open = details.open || open.has(details.id);
        }
    }

    async function refresh() {
        due = null;
        if (document.hidden || isGone) {
            return;
        }
        if (isBusy()) {
            say(words.dataset.paused, "paused");
            plan();
            return;
        }
        last = Date.now();
        if (dashboard) {
            document.dispatchEvent(new Event("ojs-changed"));
            say(words.dataset.following, "live");
            return;
        }
        try {
            const fresh = await window.ojsPage.fetchAgain();
            if (isGone) {
                return;
            }
            if (!fresh) {
                say(words.dataset.lost, "lost");
                return;
            }
            if (isBusy()) {
                return;
            }
            const freshList = fresh.querySelector("#result_list tbody");
            const freshPage = fresh.querySelector("#content-main");
            if (list && freshList) {
                replaceRows(freshList);
            } else if (!list && !freshList && page && freshPage && page.innerHTML !== freshPage.innerHTML) {
                replacePage(freshPage);
            } else if (Boolean(list) !== Boolean(freshList)) {
                location.reload(); // the first row has come, or the last one has gone
            }
            document.dispatchEvent(new Event("ojs-refreshed"));
            say(words.dataset.following, "live");
        } catch {
            // The server is away: the next change may find it.
        }
    }

    function plan() {
        if (due === null) {
            due = setTimeout(refresh, Math.max(0, last + PAUSE - Date.now()));
        }
    }

    const source = new EventSource(words.content);
    source.addEventListener("heard", () => say(words.dataset.following, "live"));
    source.addEventListener("changed", plan);
    source.addEventListener("error", () => {
        if (source.readyState === EventSource.CLOSED && status.hidden) {
            return; // this server does not stream
        }
        say(words.dataset.lost, "lost");
    });
    document.addEventListener("ojs-gone", end);
    document.addEventListener("visibilitychange", () => {
        if (!document.hidden && !status.hidden) {
            plan();
        }
    });
});
