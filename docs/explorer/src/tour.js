// The guided tour: what to look at, a prediction to make first, what happens and why. Numbers are means of ten seeds.

export const TOUR = [
  {
    title: "Two features, one label",
    settings: { rho: 2 },
    view: "panes",
    look: "Every example has two features. The easy one lies on a line, and one straight cut separates the two " +
      "labels (circles and triangles). The hard one lies on a spiral with two arms. Each feature alone tells " +
      "the label. The two networks start from the same random weights and see the same batches in the same " +
      "order.",
    question: "The left network trains with plain SGD. What will it have learned at the end?",
    options: ["Both features", "The easy one, little of the hard one", "The hard one, little of the easy one"],
    answer: 1,
    why: "SGD takes the easy feature first. As soon as that separates the examples, the loss is almost zero, " +
      "and so is the gradient: nothing is left to drive the spiral. The test error stays below 1 % and shows " +
      "nothing of this. The hard error does: asked by itself, the spiral feature gets the label wrong for about " +
      "24 % of the test examples (its probe error). This is called simplicity bias.",
  },
  {
    title: "One changed step",
    settings: { rho: 2 },
    view: "errors",
    look: "The right network trains with LSAM. Before each step it moves two numbers only, the weights v of the " +
      "head that adds up the two features: a length ρ uphill, to where the loss is larger. It computes the " +
      "gradient at that “phantom” point and takes the step from where it was.",
    question: "LSAM wants a low loss, like SGD; nobody told it about features. What happens to the hard probe " +
      "error?",
    options: ["The same as SGD", "Somewhat lower", "Many times lower"],
    answer: 2,
    why: "With ρ = 2 it ends at about 2 %, against 24 % for SGD: follow the boundary as it bends along the " +
      "spiral. The shaded bands are ten seeds; try another seed, or ρ = 1, where the mean is 14 %.",
  },
  {
    title: "What the climb does to the head",
    settings: { rho: 1 },
    view: "ratio",
    look: "These charts show the head: dashed where it really is, solid where LSAM computes its gradients. " +
      "Uphill means against whatever lowers the loss most.",
    question: "Which weight does the climb shrink more, in proportion?",
    options: ["That of the easy feature", "That of the hard feature", "Both alike"],
    answer: 0,
    why: "What lowers the loss most is the feature that is already learned well: the easy one. At the phantom " +
      "point its weight is about half, while the hard one keeps nine tenths. The ratio hard over easy is " +
      "larger there than at the real head. These weights multiply what each feature learns from a step: they " +
      "are its learning rates.",
  },
  {
    title: "Which examples count",
    settings: { rho: 1, epochs: 10 },
    view: "lorenz",
    look: "An example counts in the gradient by its importance weight, the probability given to the wrong " +
      "label: the size of its mark. A Lorenz curve shows how evenly the weights are spread; on the diagonal " +
      "all count alike. We stop after 10 epochs, when nearly all training examples are right.",
    question: "At the phantom point, are the weights spread more or less evenly than at the real one?",
    options: ["More evenly", "Less evenly"],
    answer: 0,
    why: "With the easy feature turned down, examples that were done are in doubt again and go on teaching the " +
      "spiral. For SGD's network a few examples carry nearly all the weight (dashed); its solid curve is what " +
      "a climb of ρ would make of it.",
  },
  {
    title: "Two effects, one at a time",
    settings: { left: "weights", right: "both", vStar: 3 },
    view: "panes",
    look: "So the climb changes two things: how much each example counts, and how fast each feature learns. " +
      "Here we build each by hand, without any climb, from a fixed head v* = (1, 3). Left: only the " +
      "importance weights are taken at v*. Right: the learning rates as well.",
    question: "Is one effect alone enough?",
    options: ["Yes, the weights do it all", "No, both help, and the pair is best", "Neither does anything"],
    answer: 1,
    why: "Hard probe error over ten seeds: SGD 24 %, weights only 7 %, rates only 11 %, the pair 0.65 %. Choose " +
      "“Rates only” in the menu of a pane to see the third.",
  },
  {
    title: "Where it ends",
    settings: { rho: 3 },
    view: "errors",
    look: "If a climb of 2 is good, is 3 better? Here the climb is often longer than the head itself.",
    question: "What will LSAM with ρ = 3 do?",
    options: ["Learn the spiral even better", "The same as ρ = 2", "Fail to train"],
    answer: 2,
    why: "At ρ = 3 the phantom head often has the wrong sign, and so has the gradient: training itself fails. " +
      "The radius that is best depends on the problem, and on the batch: with all 300 examples in a batch " +
      "LSAM gains almost nothing. Also, a harder spiral (χ = 540°) is only partly learned at any ρ. Now try " +
      "it yourself.",
  },
];
