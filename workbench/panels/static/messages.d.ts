// Made by `python -m tools.js.messages` from what the panels in Python send; not to be edited.
export interface ApplyView {
  simulated: boolean;
  facts: [string, string][];
  status: string;
  command: string;
  can_apply: boolean;
  can_undo: boolean;
  can_default: boolean;
}
export interface ClocksWords {
  state: string;
  step: number | null;
  paused: boolean;
  headline: string;
  details: string[];
  saved: string;
  events: [number, string][];
  objective: string;
  objective_text: string;
  bound: number | null;
  commands: Record<string, boolean>;
}
export interface ClusterDrilled {
  kind: string;
  policy: string;
  name: string;
  title: string;
  picture: string;
  facts: [string, string][];
  jobs: [string, string][];
  nodes: number[];
}
export interface ClusterLine {
  policy: string;
  number: number;
  value: number | null;
  text: string;
  cells: string[];
  energy_mwh: number;
  energy_sd: number | null;
  ratio: number | null;
  ratio_sd: number | null;
  unowned: number;
}
export interface Greeting {
  theme: Record<string, [string, string, string]>;
}
export interface Gpu {
  uuid: string;
  index: number;
  name: string;
  simulated: boolean;
  colour: string;
  dash: number[];
  low: number | null;
  high: number | null;
  default: number | null;
  reason: string;
}
export interface NamedLevel {
  name: string;
  seconds: number;
  words?: string;
}
export interface Layer {
  kind: string;
  ink: string;
  width: number | null;
  dashes: number[];
  opacity: number | null;
  hover: string[];
  rows: Record<string, any[]>;
  shape?: string;
  framed?: boolean;
  size?: number;
  weight?: string;
  spread?: boolean;
  name?: string;
}
export interface Frame {
  title: string;
  label: string;
  height: number | null;
  x: [number, number];
  y: [number, number];
  left: number | [number, string][];
  below: number | [number, string][];
  layers: Layer[];
}
export interface Period {
  gpu: number;
  since: number | null;
  headline: string;
  details: string[];
  sure: boolean;
  levels: NamedLevel[];
  level: NamedLevel | null;
  spans: number;
  figure: Frame[][];
  range: [number, number] | null;
}
export interface PowerNews {
  kind?: string;
  counts: number[];
  elapsed: number;
  energy: (number | null)[];
  iteration: number | null;
  marks?: [number, string][];
  period?: Period;
}
export interface PowerPlot {
  title: string;
  column: string;
  gpus: number[];
  height: number;
  ticks: number;
}
export interface PowerResult {
  answer: string;
  details: string;
}
export interface Applicable {
  kind?: string;
  gpus: [string, string][];
  uuid: string;
  view: ApplyView | null;
  wanted: Record<string, number | null> | null;
  doing: string;
  done: string;
  plot: string;
}
export interface OwnSettings {
  kind?: string;
  gpus: [string, string][];
  uuid: string;
  view: ApplyView | null;
  wanted: Record<string, number | null> | null;
  doing: string;
  done: string;
  plot: string;
  table: string;
  name: string;
}
export interface PowerGreeting {
  theme: Record<string, [string, string, string]>;
  kind?: string;
  counts: number[];
  elapsed: number;
  energy: (number | null)[];
  iteration: number | null;
  marks?: [number, string][];
  period?: Period;
  title: string;
  plots: PowerPlot[];
  label: string;
  gpus: Gpu[];
  window: number;
  stop: boolean;
  slider: boolean;
  follows: boolean;
  result: PowerResult | null;
  lanes: Frame[][];
  settings?: OwnSettings | null;
}
export interface LimitAnswer {
  kind: string;
  applied: Record<string, number | null>;
  asked: number | null;
}
export interface TracedGpu {
  index: number;
  name: string;
  colour: string;
}
export interface PeriodNews {
  kind?: string;
  title: string;
  count: number;
  period: Period;
}
export interface PeriodGreeting {
  theme: Record<string, [string, string, string]>;
  kind?: string;
  title: string;
  count: number;
  period: Period;
  gpus: TracedGpu[];
  simulated: boolean;
}
export interface Progress {
  share: number;
  words: string;
  can_cancel: boolean;
}
export interface Sheet {
  kind: string;
  name: string;
  html: string;
  bar: Progress | null;
  theme?: Record<string, [string, string, string]>;
}
export interface LogRun {
  id: string;
  cells: string[];
  numbers: (number | null)[];
}
export interface LogNews {
  kind: string;
  columns: string[];
  runs: LogRun[];
  whole: boolean;
  chosen: string[];
  look: string;
  theme?: Record<string, [string, string, string]>;
}
export interface LogSparks {
  kind: string;
  sparks: Record<string, number[]>;
}
export interface ApplyKnobs {
  limits: [number | null, number | null, number | null] | null;
  sm: number[];
  memory: number[];
}
export interface Apply {
  kind: string;
  title: string;
  uuid: string;
  view: ApplyView | null;
  wanted: Record<string, number | null> | null;
  doing: string;
  done: string;
  plot: string;
  theme?: Record<string, [string, string, string]>;
  knobs?: ApplyKnobs;
  gpus?: [string, string][];
}
export interface JobPoint {
  text: string;
  layers: Layer[];
}
export interface Applied {
  kind?: string;
  gpus: [string, string][];
  uuid: string;
  view: ApplyView | null;
  wanted: Record<string, number | null> | null;
  doing: string;
  done: string;
  plot: string;
  job: JobPoint | null;
}
export interface ClocksWanted {
  objective: string | null;
  bound: number | null;
}
export interface ClocksDrawing {
  knobs: string[];
  figure: Frame[][];
}
export interface ClocksNews {
  kind: string;
  title: string;
  simulated: boolean;
  words: ClocksWords | null;
  begins: boolean;
  wanted: ClocksWanted;
  asked?: number | null;
  drawing?: ClocksDrawing;
}
export interface ClocksGreeting {
  theme: Record<string, [string, string, string]>;
  kind: string;
  title: string;
  simulated: boolean;
  words: ClocksWords | null;
  begins: boolean;
  wanted: ClocksWanted;
  asked?: number | null;
  drawing?: ClocksDrawing;
  steps: string[];
  objectives: Record<string, string>;
  nothing: string;
}
export interface Policy {
  name: string;
  words: string;
  takes: string[];
}
export interface ClusterChosen {
  presets: Record<string, string[]>;
  log: string;
  logs: string[];
  part: string;
  parts: string[];
  jobs: number | null;
  wrong: string;
  trimmed: boolean;
  keep_valid: boolean;
  nodes: number;
  kind: string;
  kinds: string[];
  gpus: number;
  draws: number;
  sweep: string | null;
  values: (number | null)[];
  atOnce: boolean;
  load_threshold: number | null;
  max_jobs: number | null;
  slack: number | null;
  sleep_after_s: number | string | null;
  policies: Policy[];
  chosen: string[];
}
export interface PolicyShare {
  policy: string;
  share: number;
}
export interface ClusterRun {
  state: string;
  words: string;
  each: PolicyShare[];
  stale: boolean;
}
export interface DrawnCurve {
  policy: string;
  text: string;
  ink: string;
  dashes: number[];
  open: boolean;
  notable: Record<string, string[]>;
}
export interface ClusterDrawn {
  lines: ClusterLine[];
  curves: DrawnCurve[];
  figure: Frame[][];
  headline: string;
  details: string[];
  about: string[];
  nodeCount: number;
}
export interface ClusterNews {
  kind: string;
  title: string;
  settings: ClusterChosen;
  run: ClusterRun;
  asked?: number | null;
  drawn?: ClusterDrawn;
  version?: number;
}
export interface ClusterGreeting {
  theme: Record<string, [string, string, string]>;
  kind: string;
  title: string;
  settings: ClusterChosen;
  run: ClusterRun;
  asked?: number | null;
  drawn?: ClusterDrawn;
  version?: number;
  palette: string[];
  heads: [string, string][];
  units: Record<string, string>;
  swept: string[];
  distributions: [string, string][];
  drilled: ClusterDrilled | null;
  distribution: string;
}
export interface FrontierStep {
  headline: string;
  name: string;
  details: string[];
}
export interface FrontierColumn {
  name: string;
  hint: string;
  values: (number | string | null)[];
  texts: string[] | null;
}
export interface FrontierView {
  figure: Frame[][];
  front: number[];
  steps: FrontierStep[];
  knee: number;
  compared: boolean;
  slowest: number;
  table: FrontierColumn[];
}
export interface FrontierChoice {
  headline: string;
  name: string;
  details: string[];
  kind: string;
  version: number;
  row: number;
  rule: string;
  eta: number;
  slowdown: number | null;
  note: string;
  place: number;
  allowed: number;
  on: boolean;
  best: boolean;
  least: boolean;
  knee: boolean;
  python: string;
  moved: Layer[];
  asked?: number | null;
}
export interface FrontierPoints {
  kind: string;
  title: string;
  simulated: boolean;
  said: string;
  filters: Record<string, any>;
  options: Record<string, any[]>;
  relative: boolean;
  whole: boolean;
  view: FrontierView | null;
  choice: FrontierChoice | null;
  applied?: Applied | null;
  theme?: Record<string, [string, string, string]>;
}
export interface FrontierFile {
  kind: string;
  what: string;
  name: string;
  view: string | null;
}
export interface RecurringView {
  headline: string;
  details: string[];
  eta: number | null;
  objective: string;
  figure: Frame[][];
}
export interface RecurringNews {
  kind?: string;
  view: RecurringView | null;
  left: number;
  asked?: number | null;
}
export interface RecurringGreeting {
  theme: Record<string, [string, string, string]>;
  kind?: string;
  view: RecurringView | null;
  left: number;
  asked?: number | null;
  title: string;
  name: string;
  simulated: boolean;
  whyNot: string;
}
