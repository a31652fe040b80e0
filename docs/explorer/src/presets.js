// "Show me figure 7": settings under which a figure of the paper can be seen, and where to look.

/** Settings that differ from the start, the card to look at, and what to see. Errors are means over ten seeds. */
export const PRESETS = {
  fig1: {
    title: "Figure 1: what each network has learned",
    settings: {},
    view: "panes",
    text: "Both networks learn the label and the straight (easy) feature. Only LSAM bends its boundary along " +
      "the spiral (hard): over ten seeds the hard probe error is 24 % for SGD and 2 % for LSAM with ρ = 2.",
  },
  fig2: {
    title: "Figure 2: the hard error falls with ρ",
    settings: { rho: 1 },
    view: "radius",
    text: "Change ρ or the complexity χ and run again: every finished run leaves its mark beside the curve of " +
      "ten seeds. At χ = 360° the mean error falls from 24 % at ρ = 0 to 14 % at 1 and 2 % at 2.",
  },
  fig3: {
    title: "Figure 3: the phantom head prefers the hard feature",
    settings: { rho: 0.5, trainHead: "no" },
    view: "ratio",
    text: "With the head frozen at (1, 1) the real ratio stays 1, and the phantom ratio is about 1.8. Train the " +
      "head: the phantom ratio is still above the real one, but the real one falls below 1.",
  },
  fig4: {
    title: "Figure 4: learning rates of the two features",
    settings: { rho: 1 },
    view: "factors",
    text: "The climb multiplies the easy feature's learning rate by about 0.53 and the hard one's by about 0.90 " +
      "(medians over all batches): both fall, the easy one much more.",
  },
  fig5: {
    title: "Figure 5: the phantom weights are spread more evenly",
    settings: { rho: 1, epochs: 10 },
    view: "lorenz",
    text: "A curve near the diagonal means that all examples count alike. In both networks the phantom curve " +
      "(solid) is nearer to it than the real one (dashed).",
  },
  fig6: {
    title: "Figure 6: which examples gain weight",
    settings: { rho: 1, epochs: 10 },
    view: "fit-right",
    text: "Full marks gain a share of the weight at the phantom parameter, empty ones lose. Those far to the " +
      "right gain: the easy feature fits them well.",
  },
  fig7: {
    title: "Figure 7: the two effects, built by hand",
    settings: { left: "lsam", right: "both", rho: 1.5, vStar: 1.5 },
    view: "panes",
    text: "On the right there is no climb: both importance weights and learning rates are taken at a fixed head " +
      "v* = (1, 1.5), about LSAM's median phantom ratio at ρ = 1.5. Ten seeds: LSAM 6 %, both effects by hand " +
      "8 %, weights only 15 %, rates only 21 %.",
  },
  fig10: {
    title: "Figure 10: with noise",
    settings: { corruption: "label", level: 0.05, where: "hard" },
    view: "panes",
    text: "In 5 % of the training points the hard feature has the wrong sign. LSAM still learns more of it (ten " +
      "seeds: 30 % against 10 %). Put the noise on both features, and SGD itself learns the spiral: the easy " +
      "feature no longer suffices.",
  },
  fig11: {
    title: "Figure 11: with larger batches",
    settings: { rho: 1, batch: 20 },
    view: "errors",
    text: "With batches of 20 instead of 5 LSAM's gain remains (ten seeds: 25 % against 11 %). With batches of " +
      "300, all points at once, it is almost gone.",
  },
};
