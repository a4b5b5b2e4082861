// Theme: before anything is drawn, light or dark, as the system says or as was chosen here.
(() => {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  let chosen = "auto";
  try {
    chosen = localStorage.getItem("quire-theme") || "auto";
  } catch {
    // without storage it follows the system
  }
  const apply = () => {
    const is = chosen === "auto" ? (dark.matches ? "dark" : "light") : chosen;
    document.documentElement.dataset.theme = is;
    document.documentElement.dataset.chosen = chosen;
    window.dispatchEvent(new Event("quire-theme"));
  };
  dark.addEventListener("change", apply);
  window.chooseTheme = (name) => {
    chosen = name;
    try {
      localStorage.setItem("quire-theme", name);
    } catch {
      // it is kept for this page only
    }
    apply();
  };
  apply();
})();
