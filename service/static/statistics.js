// Distances between samples that begin with the same noise, and what they say about a solver.

/**
 * Euclidean distance of each sample to its partner; null where either failed.
 * @param first, second lists of samples (nested lists of numbers, null where a sample is not finite)
 */
export function distances(first, second) {
  const count = Math.min(first.length, second.length);
  return Array.from({ length: count }, (_, index) => {
    if (first[index] === null || second[index] === null) return null;
    const [p, q] = [flat(first[index]), flat(second[index])];
    return Math.sqrt(p.reduce((sum, value, k) => sum + (value - q[k]) ** 2, 0));
  });
}

const flat = (sample) => (Array.isArray(sample[0]) ? sample.flat(Infinity) : sample);

/** Root mean square distance of samples from their mean: the length that errors are measured by. */
export function spread(samples) {
  const there = samples.filter((sample) => sample !== null).map(flat);
  if (!there.length) return 0;
  const mean = there[0].map((_, k) => there.reduce((sum, sample) => sum + sample[k], 0) / there.length);
  const squares = there.map((sample) => sample.reduce((sum, value, k) => sum + (value - mean[k]) ** 2, 0));
  return Math.sqrt(squares.reduce((sum, value) => sum + value, 0) / there.length);
}

/** Samples of a response that reached the end, null for the others. */
export function finished({ samples, failed }) {
  if (!failed.length) return samples;
  const kept = [...samples];
  for (const { index } of failed) kept[index] = null;
  return kept;
}

/**
 * How far a response is from a reference, as shares of the reference's spread.
 * @returns {{each: (number | null)[], mean: number, worst: number, worstIndex: number} | null} null if no sample
 *   reached the end in both, or all samples of the reference are equal
 */
export function errors(response, reference) {
  const exact = finished(reference);
  const unit = spread(exact);
  const each = distances(finished(response), exact).map((value) => (value === null ? null : value / unit));
  const known = each.filter((value) => value !== null);
  if (!known.length || !(unit > 0)) return null;
  const worst = known.reduce((p, q) => Math.max(p, q));
  return { each, mean: mean(known), worst, worstIndex: each.indexOf(worst) };
}

export const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

/** A share as people read it: 10 %, 0.45 %, 2e-6 %. */
export function percent(share) {
  const value = 100 * share;
  if (value === 0) return "0 %";
  if (value >= 10) return `${Math.round(value)} %`;
  return `${value < 1e-3 ? Number(value.toPrecision(1)).toExponential().replace("e+", "e") : Number(value.toPrecision(2))} %`;
}
