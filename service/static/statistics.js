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

/** Samples of a response that reached the end, null for the others. */
export function finished({ samples, failed }) {
  if (!failed.length) return samples;
  const kept = [...samples];
  for (const { index } of failed) kept[index] = null;
  return kept;
}

export const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

/** A share as people read it: 10 %, 0.45 %, 2e-6 %. */
export function percent(share) {
  const value = 100 * share;
  if (value === 0) return "0 %";
  if (value >= 10) return `${Math.round(value)} %`;
  return `${value < 1e-3 ? Number(value.toPrecision(1)).toExponential().replace("e+", "e") : Number(value.toPrecision(2))} %`;
}
