// On pages with a section "In Python" and a section "In Rust", two buttons choose which of them is shown. The choice is kept for
// the next page. Without this script, in print and in a search both are there.
(() => {
    "use strict";
    const languages = ["Python", "Rust"];
    const main = document.querySelector("main");
    const heads = [...main.querySelectorAll("h2")];

    // A section is its heading and everything up to the next one.
    const sections = languages.map((language) => heads.filter((head) => head.textContent.trim().startsWith(`In ${language}`)).map((head) => {
        const parts = [head];
        for (let next = head.nextElementSibling; next && next.tagName !== "H2"; next = next.nextElementSibling) {
            parts.push(next);
        }
        return parts;
    }).flat());
    if (sections.some((parts) => parts.length === 0)) {
        return;
    }

    const bar = document.createElement("div");
    bar.className = "languages";
    bar.setAttribute("role", "group");
    bar.setAttribute("aria-label", "Language of the programs");
    const choices = [...languages, "both"];
    const buttons = choices.map((choice) => {
        const button = document.createElement("button");
        button.type = "button";
        button.textContent = choice;
        button.addEventListener("click", () => show(choice));
        bar.append(button);
        return button;
    });
    sections.flat().reduce((first, part) => (first.compareDocumentPosition(part) & Node.DOCUMENT_POSITION_PRECEDING ? part : first))
        .before(bar);

    function show(choice) {
        languages.forEach((language, n) => {
            const isShown = choice === "both" || choice === language;
            sections[n].forEach((part) => part.classList.toggle("other-language", !isShown));
        });
        buttons.forEach((button, n) => button.setAttribute("aria-pressed", String(choices[n] === choice)));
        try {
            localStorage.setItem("thalweg-language", choice);
        } catch {
            // Pages of a folder may have no storage.
        }
    }

    // A link to a heading of the hidden section shows it.
    function follow() {
        const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
        const hidden = target && target.closest(".other-language");
        if (hidden) {
            show("both");
            target.scrollIntoView();
        }
    }

    let kept = "both";
    try {
        kept = localStorage.getItem("thalweg-language") ?? kept;
    } catch {
        // Pages of a folder may have no storage.
    }
    show(choices.includes(kept) ? kept : "both");
    follow();
    window.addEventListener("hashchange", follow);
})();
