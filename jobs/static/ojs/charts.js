/* Shows the values and the mark of a chart at the pointer, or, with the arrow keys, at the point before or after.
   It reads them from the table behind the chart, which is there without script as well. */
"use strict";

document.addEventListener("DOMContentLoaded", () => {
    const SVG = "http://www.w3.org/2000/svg";

    function parts(svg) {
        const figure = svg.closest("figure");
        const names = [...figure.querySelectorAll("thead th")].slice(1).map(each => each.textContent);
        // The table has the newest first, the drawing the oldest.
        const rows = [...figure.querySelectorAll("tbody tr")].reverse();
        return {names, rows, readout: figure.querySelector(".ojs-readout")};
    }

    function show(svg, index) {
        const {names, rows, readout} = parts(svg);
        index = Math.min(Math.max(index, 0), rows.length - 1);
        if (!rows[index]) {
            return;
        }
        svg.dataset.index = index;
        const left = Number(svg.dataset.left), right = Number(svg.dataset.right);
        const x = left + index * (right - left) / Math.max(rows.length - 1, 1);
        let line = svg.querySelector(".ojs-cursor");
        if (!line) {
            line = svg.appendChild(document.createElementNS(SVG, "line"));
            line.setAttribute("class", "ojs-cursor");
            line.setAttribute("y1", 0);
            line.setAttribute("y2", svg.viewBox.baseVal.height - 20);
        }
        line.setAttribute("x1", x);
        line.setAttribute("x2", x);
        const values = [...rows[index].querySelectorAll("td")].map(
            (cell, place) => `${names[place]}: ${cell.textContent}`);
        const mark = svg.querySelector(`.ojs-mark[data-index="${index}"] title`);
        if (mark) {
            values.push(mark.textContent);
        }
        readout.textContent = `${rows[index].querySelector("th").textContent}  ${values.join(", ")}`;
        readout.hidden = false;
    }

    function hide(svg) {
        svg.querySelector(".ojs-cursor")?.remove();
        parts(svg).readout.hidden = true;
        delete svg.dataset.index;
    }

    // Charts come and go while one looks: so nothing is bound to a single one.
    document.addEventListener("pointermove", event => {
        const svg = event.target.closest?.(".ojs-chart");
        for (const each of document.querySelectorAll(".ojs-chart[data-index]")) {
            if (each !== svg && each !== document.activeElement) {
                hide(each);
            }
        }
        if (svg) {
            const box = svg.getBoundingClientRect();
            const x = (event.clientX - box.left) / box.width * svg.viewBox.baseVal.width;
            const left = Number(svg.dataset.left), right = Number(svg.dataset.right);
            const last = parts(svg).rows.length - 1;
            show(svg, Math.round((x - left) / (right - left) * last));
        }
    });
    document.addEventListener("keydown", event => {
        const svg = event.target.closest?.(".ojs-chart");
        const step = {ArrowLeft: -1, ArrowRight: 1}[event.key];
        if (svg && step) {
            event.preventDefault();
            const last = parts(svg).rows.length - 1;
            show(svg, Number(svg.dataset.index ?? last + (step < 0 ? 1 : 0)) + step);
        }
    });
    document.addEventListener("focusout", event => {
        const svg = event.target.closest?.(".ojs-chart");
        if (svg) {
            hide(svg);
        }
    });

    function equip() {
        for (const svg of document.querySelectorAll(".ojs-chart:not([tabindex])")) {
            svg.setAttribute("tabindex", "0");
        }
    }

    equip();
    document.addEventListener("ojs-refreshed", equip);
});
