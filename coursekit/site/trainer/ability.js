// Estimate of the learner's ability in each topic: coursekit/quiz/ability.py in JavaScript.

const GENERAL_SPREAD = 1.2;
const TOPIC_SPREAD = 0.8;
const GRID = Array.from({ length: 101 }, (_, i) => -5 + i / 10);
const PRIOR = GRID.map((at) => Math.exp(-0.5 * (at / GENERAL_SPREAD) ** 2));
const NEAR = GRID.map((general) => {
  const row = GRID.map((topic) => Math.exp(-0.5 * ((general - topic) / TOPIC_SPREAD) ** 2));
  const sum = row.reduce((a, b) => a + b);
  return row.map((value) => value / sum);
});

export function chance(ability, level, guess = 0) {
  return guess + (1 - guess) / (1 + Math.exp(-(ability - (level - 3))));
}

export function information(ability, level, guess = 0) {
  const p = chance(ability, level, guess);
  const slope = ((p - guess) * (1 - p)) / (1 - guess);
  return slope ** 2 / (p * (1 - p));
}

// answers: {topic, level, score, guess}. Returns {general, topics: Map}, each {ability, error, answers}.
export function estimate(answers, topics = []) {
  const likelihood = new Map(topics.map((topic) => [topic, GRID.map(() => 1)]));
  const count = new Map(topics.map((topic) => [topic, 0]));
  for (const { topic, level, score, guess } of answers) {
    const before = likelihood.get(topic) ?? GRID.map(() => 1);
    const seen = GRID.map((at, i) => {
      const p = chance(at, level, guess);
      return before[i] * p ** score * (1 - p) ** (1 - score);
    });
    const most = Math.max(...seen);
    likelihood.set(topic, seen.map((value) => value / most));
    count.set(topic, (count.get(topic) ?? 0) + 1);
  }
  const message = new Map();
  const total = PRIOR.map(Math.log);
  for (const [topic, seen] of likelihood) {
    const logs = NEAR.map((row) => Math.log(row.reduce((sum, near, j) => sum + near * seen[j], 0)));
    message.set(topic, logs);
    logs.forEach((value, i) => (total[i] += value));
  }
  const result = new Map();
  for (const [topic, seen] of likelihood) {
    const others = normal(total.map((value, i) => value - message.get(topic)[i]));
    const weights = seen.map((value, j) => value * others.reduce((sum, other, i) => sum + other * NEAR[i][j], 0));
    result.set(topic, mean(weights, count.get(topic)));
  }
  const answered = [...count.values()].reduce((a, b) => a + b, 0);
  return { general: mean(normal(total), answered), topics: result };
}

function normal(logs) {
  const most = Math.max(...logs);
  return logs.map((value) => Math.exp(value - most));
}

function mean(weights, answers) {
  const sum = weights.reduce((a, b) => a + b);
  const ability = weights.reduce((all, weight, i) => all + weight * GRID[i], 0) / sum;
  const variance = weights.reduce((all, weight, i) => all + weight * (GRID[i] - ability) ** 2, 0) / sum;
  return { ability, error: Math.sqrt(variance), answers };
}
