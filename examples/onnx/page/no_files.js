// stands for Node's `fs`, which sentencepiece-js imports and a page does not have
export {};
